"""Values that are wrong are refused before anything is installed, in words that name the key."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chart.rendering import helm, objects, only, refusal, template
from tidegate_kernel.settings import KafkaSettings

_TWO = {"a": {"jobs": ["one"]}, "b": {"jobs": ["one"]}}
_KEDA = {"kind": "keda", "maxReplicas": 4}
_TOKEN = {"tokenSecret": {"name": "operator", "key": "token"}}

_MISTAKES: list[Any] = [
    # What people type, and what the answer has to say.
    pytest.param({"worker": {"replica": 3}}, ["/worker", "'replica' not allowed"], id="a-key-misspelt"),
    pytest.param({"workers": {"a": {"jobs": ["one"]}}}, ["'workers' not allowed"], id="a-section-misspelt"),
    pytest.param(
        {"workloads": {"search": {"job": "one"}}}, ["/workloads/search", "'job' not allowed"], id="job-for-jobs"
    ),
    pytest.param(
        {"settings": {"TIDEGATE_KAFKA_BOOTSTRAPS": "kafka:9092"}},
        ["/settings", "'TIDEGATE_KAFKA_BOOTSTRAPS' not allowed"],
        id="a-setting-misspelt",
    ),
    pytest.param(
        {"settings": {"TIDEGATE_POSTGRES_DSN": "postgresql://u:p@db/shop"}},
        ["/settings", "'TIDEGATE_POSTGRES_DSN' not allowed"],
        id="a-secret-in-plain-text",
    ),
    pytest.param(
        {"secrets": {"env": {"TIDEGATE_POSTGRES_DSN": "shop-postgres"}}},
        ["/secrets/env/TIDEGATE_POSTGRES_DSN", "got string, want object"],
        id="a-secret-without-its-key",
    ),
    pytest.param(
        {"settings": {"TIDEGATE_LANES": "many"}},
        ["/settings/TIDEGATE_LANES", "'many' does not match"],
        id="a-setting-that-is-no-number",
    ),
    pytest.param(
        {"settings": {"TIDEGATE_LANES": 0}}, ["/settings/TIDEGATE_LANES", "got 0, want 1"], id="a-setting-out-of-bounds"
    ),
    pytest.param(
        {"settings": {"TIDEGATE_KAFKA_SESSION_TIMEOUT": "60s"}},
        ["/settings/TIDEGATE_KAFKA_SESSION_TIMEOUT", "'60s' does not match"],
        id="seconds-with-a-unit",
    ),
    pytest.param(
        {"settings": {"TIDEGATE_KAFKA_SECURITY_PROTOCOL": "sasl_ssl"}},
        ["/settings/TIDEGATE_KAFKA_SECURITY_PROTOCOL", "'SASL_SSL'"],
        id="a-setting-that-is-no-choice",
    ),
    pytest.param({"image": {"tag": 4.2}}, ["/image/tag", "got number, want string"], id="a-tag-that-is-a-number"),
    pytest.param({"extraEnv": [{"name": "A", "valeu": "b"}]}, ["/extraEnv/0", "'valeu' not allowed"], id="a-variable"),
    pytest.param({"worker": {"env": [{"name": "A", "value": 1}]}}, ["/worker/env/0/value"], id="a-variable-unquoted"),
    pytest.param(
        {"worker": {"sidecars": [{"name": "beside"}]}}, ["/worker/sidecars/0", "'image'"], id="a-sidecar-without-image"
    ),
    pytest.param(
        {"extraVolumeMounts": [{"name": "a", "path": "/a"}]},
        ["/extraVolumeMounts/0", "'mountPath'"],
        id="a-mount-without-path",
    ),
    pytest.param(
        {"tasks": {"tolerations": [{"key": "spot", "operator": "exists"}]}},
        ["/tasks/tolerations/0/operator", "'Exists'"],
        id="a-toleration-misspelt",
    ),
    pytest.param({"image": "registry.example.com/shop:4.2"}, ["/image", "got string, want object"], id="image-as-text"),
    pytest.param(
        {"worker": {"resources": {"limits": {"memory": "512mb"}}}},
        ["/worker/resources/limits/memory", "'512mb' does not match"],
        id="a-quantity-misspelt",
    ),
    pytest.param(
        {"worker": {"replicas": "two"}}, ["/worker/replicas", "got string, want integer"], id="a-number-in-words"
    ),
    pytest.param(
        {"worker": {"autoscaling": {"kind": "Keda"}}}, ["/worker/autoscaling/kind", "'keda'"], id="an-unknown-choice"
    ),
    pytest.param({"workloads": {"Search": {"jobs": ["one"]}}}, ["/workloads", "'Search'"], id="a-name-in-capitals"),
    pytest.param(
        {"image": {"digest": "5b0c9d3e"}},
        ["/image/digest", "'5b0c9d3e' does not match"],
        id="a-digest-without-its-kind",
    ),
    pytest.param({"workloads": {"search": {}}}, ["workloads.search.jobs: name the jobs"], id="no-jobs"),
    pytest.param(
        {"workloads": {"search": {"jobs": ["one"], "allJobs": True}}},
        ["workloads.search: jobs and allJobs exclude each other"],
        id="jobs-and-all-jobs",
    ),
    pytest.param({"workloads": _TWO}, ['workloads.b.jobs: workloads.a runs "one" already'], id="a-job-in-two-places"),
    pytest.param(
        {"workloads": {"a": {"allJobs": True}, "b": {"jobs": ["one"]}}},
        ["workloads.a.allJobs"],
        id="all-jobs-and-another",
    ),
    pytest.param({"scheduler": {"enabled": True}}, ["scheduler.jobs: name the jobs"], id="a-scheduler-of-nothing"),
    pytest.param(
        {"worker": {"replicas": 9, "partitions": 8}},
        ["workloads.worker.replicas: 9 pods for 8 partitions"],
        id="more-pods-than-partitions",
    ),
    pytest.param(
        {"workloads": {"a": {"jobs": ["one"], "autoscaling": _KEDA}}},
        ["workloads.a.partitions: say how many"],
        id="autoscaling-without-partitions",
    ),
    pytest.param(
        {"workloads": {"a": {"jobs": ["one"], "partitions": 3, "autoscaling": _KEDA}}},
        ["workloads.a.autoscaling.maxReplicas: 4 pods for 3 partitions"],
        id="autoscaling-beyond-partitions",
    ),
    pytest.param(
        {"workloads": {"a": {"jobs": ["one"], "partitions": 4, "autoscaling": _KEDA}}},
        ["metrics.prometheusUrl", "workloads.a.autoscaling.kind is keda"],
        id="keda-without-prometheus",
    ),
    pytest.param(
        {"extraEnv": [{"name": "TIDEGATE_LANES", "value": "4"}]},
        ["extraEnv: TIDEGATE_LANES is a setting of Tidegate"],
        id="a-setting-past-the-schema",
    ),
    pytest.param(
        {"worker": {"env": [{"name": "TIDEGATE_KAFKA_INSTANCE_ID", "value": "one"}]}},
        ["workloads.worker.env: TIDEGATE_KAFKA_INSTANCE_ID"],
        id="an-instance-id-for-all-pods",
    ),
    pytest.param({"backfills": {"a": {"fromBeginning": True}}}, ["/backfills/a", "'job'"], id="a-backfill-of-nothing"),
    pytest.param(
        {"tasks": _TOKEN, "backfills": {"a": {"job": "one"}}},
        ["backfills.a: say one of fromCheckpoint, fromTime and fromBeginning, not 0"],
        id="a-backfill-from-nowhere",
    ),
    pytest.param(
        {"backfills": {"a": {"job": "one", "fromBeginning": True}}},
        ["tasks.tokenSecret: backfills.a"],
        id="a-backfill-by-nobody",
    ),
    pytest.param(
        {"tasks": _TOKEN, "replays": {"a": {"job": "one"}}},
        ["replays.a.reason: say why"],
        id="a-replay-without-a-reason",
    ),
    pytest.param(
        {"tasks": _TOKEN, "replays": {"a": {"resume": 3, "job": "one"}}},
        ["replays.a.resume: a run is resumed as it is"],
        id="a-resumed-replay-with-a-filter",
    ),
    pytest.param({"worker": {"replicas": None}}, ["/worker", "missing property 'replicas'"], id="a-value-left-empty"),
    pytest.param({"drainTimeoutSeconds": None}, ["missing property 'drainTimeoutSeconds'"], id="a-time-left-empty"),
    pytest.param({"probes": {"startup": None}}, ["/probes", "missing property 'startup'"], id="a-section-left-empty"),
    pytest.param({"secrets": None}, ["missing property 'secrets'"], id="a-section-of-maps-left-empty"),
    pytest.param(
        {"worker": {"resources": {"limits": {"memroy": "512Mi"}}}},
        ["/worker/resources/limits", "'memroy' not allowed"],
        id="a-resource-misspelt",
    ),
    pytest.param(
        {"image": {"repository": "registry.example.com/shop:4.2"}},
        ["/image/repository", "'registry.example.com/shop:4.2' does not match"],
        id="a-tag-in-the-repository",
    ),
    pytest.param({"image": {"tag": "4.2 "}}, ["/image/tag", "'4.2 ' does not match"], id="a-tag-with-a-space"),
    pytest.param(
        {"worker": {"rollingUpdate": {"maxSurge": "1"}}},
        ["/worker/rollingUpdate/maxSurge", "'1' does not match"],
        id="a-number-in-quotes",
    ),
    pytest.param(
        {"worker": {"podDisruptionBudget": {"maxUnavailable": "150%"}}},
        ["/worker/podDisruptionBudget/maxUnavailable", "'150%' does not match"],
        id="more-than-all",
    ),
    pytest.param(
        {"secrets": {"env": {"TIDEGATE_POSTGRES_DSN": {"name": "Shop_Postgres", "key": "dsn"}}}},
        ["/secrets/env/TIDEGATE_POSTGRES_DSN/name", "'Shop_Postgres' does not match"],
        id="a-secret-that-cannot-exist",
    ),
    pytest.param(
        {
            "settings": {"TIDEGATE_CLICKHOUSE_URL": "http://clickhouse"},
            "secrets": {"env": {"TIDEGATE_CLICKHOUSE_URL": {"name": "shop", "key": "url"}}},
        },
        ["secrets.env.TIDEGATE_CLICKHOUSE_URL: settings has it, too"],
        id="a-setting-said-twice",
    ),
    pytest.param(
        {"drainTimeoutSeconds": 60},
        ["drainTimeoutSeconds: 60 is not less than settings.TIDEGATE_KAFKA_REBALANCE_TIMEOUT, 60"],
        id="a-drain-that-kafka-does-not-wait-for",
    ),
    pytest.param({"http": {"port": 80}}, ["/http/port", "got 80"], id="a-port-that-needs-root"),
    pytest.param(
        {"probes": {"liveness": {"successThreshold": 2}}},
        ["/probes/liveness", "'successThreshold' not allowed"],
        id="a-probe-that-kubernetes-refuses",
    ),
    pytest.param(
        {"metrics": {"rules": {"alertLabels": {"my-team": "orders"}}}},
        ["/metrics/rules/alertLabels", "'my-team' not allowed"],
        id="a-label-that-prometheus-refuses",
    ),
    pytest.param(
        {"metrics": {"rules": {"alertLabels": {"severity": "page"}}}},
        ["/metrics/rules/alertLabels/severity"],
        id="a-label-that-each-alert-has",
    ),
    pytest.param({"migrations": {"topicReplication": 0}}, ["/migrations/topicReplication"], id="topics-without-a-copy"),
    pytest.param(
        {"backfills": {"a": {"job": "one", "fromTime": "friday"}}},
        ["/backfills/a/fromTime", "'friday' does not match"],
        id="a-time-in-words",
    ),
    pytest.param(
        {"scheduler": {"jobs": ["nightly"]}}, ["scheduler.jobs: nobody would run them"], id="a-scheduler-not-enabled"
    ),
    pytest.param(
        {"workloads": {"backfill": {"jobs": ["one"]}}},
        ["workloads.backfill: pods of other kinds"],
        id="a-workload-named-as-a-job-of-the-chart",
    ),
    pytest.param(
        {
            "worker": {"resources": {"requests": None}},
            "workloads": {"a": {"jobs": ["one"], "partitions": 8, "autoscaling": {"kind": "hpa"}}},
        },
        ["workloads.a.resources.requests.cpu: autoscaling by CPU"],
        id="autoscaling-by-nothing",
    ),
    pytest.param(
        {"fullnameOverride": "a-name-that-is-long-as-such"}, ["/fullnameOverride", "maxLength"], id="a-name-too-long"
    ),
]


@pytest.mark.parametrize("values, said", _MISTAKES)
def test_mistake_is_refused_by_the_name_of_its_key(values: dict[str, Any], said: list[str]) -> None:
    """A typo that is ignored shows weeks later, as a default that nobody chose."""
    message = refusal(values)
    assert [each for each in said if each not in message] == [], message


@pytest.mark.parametrize(
    "setting, address",
    [
        ("TIDEGATE_ELASTICSEARCH_URL", "https://shop:secret-word@search:9200"),
        ("TIDEGATE_OTLP_ENDPOINT", "http://:secret-word@traces"),
    ],
)
def test_credentials_in_an_address_are_refused_and_not_repeated(setting: str, address: str) -> None:
    """The worker refuses them, too: but by then they stand in a ConfigMap, and in Helm's own storage."""
    message = refusal({"settings": {setting: address}})
    assert f"settings.{setting}: an address with credentials" in message
    assert "secret-word" not in message


@pytest.mark.parametrize("repository", ["shop", "registry.example.com/team/shop", "localhost:5000/shop"])
def test_registry_may_have_a_port(repository: str) -> None:
    """What looks for a tag must not take the port of a registry for one."""
    assert template(values={"image": {"repository": repository}}).returncode == 0


def test_numbers_may_be_quoted() -> None:
    """In a variable all is text, and many quote them for that."""
    said = {"TIDEGATE_LANES": "4", "TIDEGATE_KAFKA_SESSION_TIMEOUT": "45.5", "TIDEGATE_KAFKA_REQUEST_TIMEOUT": "PT40S"}
    config = only(objects(settings=said), "ConfigMap", "settings")["data"]
    assert said.items() <= config.items()


@pytest.mark.parametrize("release", ["shop.blue", "2nd"])
def test_release_whose_name_no_service_may_have_is_refused_at_once(release: str) -> None:
    """The server would refuse the Service, when the first migrations have run."""
    done = helm("template", release, "helm")
    assert f'makes "{release}-tidegate"' in done.stderr
    assert helm("template", release, "helm", "--set", "fullnameOverride=shop").returncode == 0


def test_longest_names_that_values_allow_fit() -> None:
    """Each part was within its bound, and the whole was refused: as if the bounds were wrong."""
    names = {
        each["metadata"]["name"]
        for each in objects(
            fullnameOverride="f" * 26,
            workloads={"w" * 24: {"jobs": ["one"]}},
            tasks=_TOKEN,
            backfills={"b" * 16: {"job": "one", "fromBeginning": True}},
        )
    }
    assert max(map(len, names)) == 26 + len("-backfill-") + 16 + len("-123456")
    assert f"{'f' * 26}-{'w' * 24}-check" in names


def test_chart_knows_for_how_long_kafka_waits() -> None:
    """It refuses a longer drain, also where nobody has said for how long."""
    assert KafkaSettings().rebalance_timeout.total_seconds() == 60


def test_mistakes_are_told_together() -> None:
    """One at a time, each costs another round through a pipeline."""
    message = refusal({"worker": {"replica": 3}, "imagee": {}, "http": {"port": 0}})
    assert all(each in message for each in ("'replica'", "'imagee'", "/http/port")), message
