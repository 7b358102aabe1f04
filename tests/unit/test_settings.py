"""Settings: what is wrong is named in one line, what is secret is never shown."""

from __future__ import annotations

import os
import pickle
from datetime import timedelta
from pathlib import Path

import pytest

from tidegate_kernel import settings as module
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.settings import KafkaSettings, Settings, read_settings

VALUE = "hunter2-hunter2"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The test says all that the process is told."""
    for name in [name for name in os.environ if name.startswith("TIDEGATE_")]:
        monkeypatch.delenv(name)
    monkeypatch.setattr(module, "_SECRETS_FOLDER", tmp_path / "secrets")


def refusal() -> str:
    with pytest.raises(Misconfigured) as caught:
        read_settings()
    assert caught.value.__cause__ is None, "the library's own error quotes values"
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return str(caught.value)


@pytest.mark.parametrize(
    "variable",
    [
        "TIDEGATE_HTTP_PORT",
        "TIDEGATE_LANES",
        "TIDEGATE_DRAIN_TIMEOUT",
        "TIDEGATE_LOG_LEVEL",
        "TIDEGATE_LOG_FORMAT",
        "TIDEGATE_KAFKA",
        "TIDEGATE_KAFKA_SECURITY_PROTOCOL",
        "TIDEGATE_KAFKA_SASL_MECHANISM",
        "TIDEGATE_KAFKA_SSL_CHECK_HOSTNAME",
        "TIDEGATE_KAFKA_SESSION_TIMEOUT",
        "TIDEGATE_KAFKA_FETCH_MAX_BYTES",
    ],
)
def test_wrong_value_is_named_by_its_variable_and_not_repeated(variable: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever sets variables sees one line about the right one; a secret in the wrong variable stays out of the log."""
    monkeypatch.setenv(variable, VALUE)

    message = refusal()

    assert message.startswith(f"wrong setting: {variable}: ")
    assert "\n" not in message
    assert "hunter" not in message


@pytest.mark.parametrize(
    "variable, value, remedy",
    [
        ("TIDEGATE_LANES", "0", "greater than or equal to 1"),
        ("TIDEGATE_HTTP_PORT", "65536", "less than or equal to 65535"),
        ("TIDEGATE_DRAIN_TIMEOUT", "0", "number of seconds, more than 0"),
        ("TIDEGATE_DRAIN_TIMEOUT", "nan", "number of seconds, more than 0"),
        ("TIDEGATE_DRAIN_TIMEOUT", "inf", "number of seconds, more than 0"),
        ("TIDEGATE_KAFKA_REQUEST_TIMEOUT", "-1", "number of seconds, more than 0"),
        ("TIDEGATE_KAFKA_SECURITY_PROTOCOL", "sasl_ssl", "'PLAINTEXT', 'SSL', 'SASL_PLAINTEXT' or 'SASL_SSL'"),
        ("TIDEGATE_ELASTICSEARCH_URL", "https://elastic:hunter2@search:9200", "no credentials"),
        ("TIDEGATE_ELASTICSEARCH_URL", "hunter2:9200", "should be an address"),
        ("TIDEGATE_OTLP_ENDPOINT", "hunter2", "should be an address"),
        ("TIDEGATE_CLICKHOUSE_URL", "http://default:hunter2@clickhouse:8123", "no credentials"),
    ],
)
def test_value_out_of_its_bounds_is_told_the_bounds(
    variable: str, value: str, remedy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A number that would start a worker which then does nothing sensible is refused at the start."""
    monkeypatch.setenv(variable, value)

    message = refusal()

    assert variable in message
    assert remedy in message
    assert "hunter2" not in message


def test_all_wrong_variables_are_named_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """One start, one list: nobody should have to fix them one restart after the other."""
    wrong = [
        "TIDEGATE_KAFKA_SECURITY_PROTOCOL",
        "TIDEGATE_KAFKA_SASL_MECHANISM",
        "TIDEGATE_LANES",
        "TIDEGATE_LOG_LEVEL",
    ]
    for variable in wrong:
        monkeypatch.setenv(variable, VALUE)

    message = refusal()

    assert [variable for variable in wrong if f"{variable}: " not in message] == []


@pytest.mark.parametrize("text, seconds", [("20", 20), ("1.5", 1.5), ("PT20S", 20), (" 20 ", 20)])
def test_duration_is_a_number_of_seconds(text: str, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """`TIDEGATE_DRAIN_TIMEOUT=20` is what everybody writes; ISO 8601 is understood as well."""
    monkeypatch.setenv("TIDEGATE_DRAIN_TIMEOUT", text)
    monkeypatch.setenv("TIDEGATE_KAFKA_SESSION_TIMEOUT", text)
    monkeypatch.setenv("TIDEGATE_KAFKA_HEARTBEAT_INTERVAL", "0.5")

    settings = read_settings()

    assert settings.drain_timeout == timedelta(seconds=seconds)
    assert settings.kafka.session_timeout == timedelta(seconds=seconds)


SECRETS = [
    "TIDEGATE_POSTGRES_DSN",
    "TIDEGATE_ELASTICSEARCH_PASSWORD",
    "TIDEGATE_ELASTICSEARCH_API_KEY",
    "TIDEGATE_CLICKHOUSE_PASSWORD",
    "TIDEGATE_KAFKA_SASL_PASSWORD",
]


def test_secrets_do_not_show_where_settings_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings end up in tracebacks and debug logs; no way of printing them shows a secret."""
    for variable in SECRETS:
        monkeypatch.setenv(variable, VALUE)

    settings = read_settings()

    printed = [repr(settings), str(settings), f"{settings.kafka!r}", settings.model_dump_json(), repr(vars(settings))]
    assert not any("hunter" in text for text in printed)
    assert settings.postgres_dsn.get_secret_value() == VALUE
    assert settings.kafka.sasl_password.get_secret_value() == VALUE
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_secrets_come_from_files_where_an_orchestrator_mounts_them(tmp_path: Path) -> None:
    """One file a secret, named as its variable in either case; the line end that editors add is not part of it."""
    folder = tmp_path / "secrets"
    folder.mkdir()
    for variable in SECRETS[:-1]:
        (folder / variable.lower()).write_text(f"{VALUE}\n")
    (folder / SECRETS[-1]).write_text(VALUE)

    settings = read_settings()

    read = [
        settings.postgres_dsn,
        settings.elasticsearch_password,
        settings.elasticsearch_api_key,
        settings.clickhouse_password,
        settings.kafka.sasl_password,
    ]
    assert [secret.get_secret_value() for secret in read] == [VALUE] * 5


def test_variable_wins_over_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable set by hand overrides what is mounted, as a person who sets it expects."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "tidegate_postgres_dsn").write_text("from-the-file")
    monkeypatch.setenv("TIDEGATE_POSTGRES_DSN", "from-the-variable")

    assert read_settings().postgres_dsn.get_secret_value() == "from-the-variable"


def test_wrong_value_in_a_file_is_named_too(tmp_path: Path) -> None:
    """The file is called as the variable is: the same line tells where to look."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "tidegate_kafka_sasl_mechanism").write_text(VALUE)

    message = refusal()

    assert message.startswith("wrong setting: TIDEGATE_KAFKA_SASL_MECHANISM: ")
    assert "hunter" not in message


def test_override_of_a_command_wins_over_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """`--port` given by hand beats the variable of the deployment."""
    monkeypatch.setenv("TIDEGATE_HTTP_PORT", "1")

    assert read_settings(http_port=2).http_port == 2


def test_defaults_reach_the_local_servers_only() -> None:
    """Without a single variable nothing leaves this machine and nothing listens beyond it."""
    settings = Settings()

    addresses = [settings.elasticsearch_url, settings.clickhouse_url, settings.http_host, settings.kafka.bootstrap]
    assert all("127.0.0.1" in address for address in addresses)
    assert "127.0.0.1" in settings.postgres_dsn.get_secret_value()
    assert settings.otlp_endpoint is None


def test_drain_fits_into_the_rebalance() -> None:
    """A revoke waits for the drain: were it the longer one, the group would throw the worker out meanwhile."""
    assert Settings().drain_timeout < KafkaSettings().rebalance_timeout
    assert KafkaSettings().heartbeat_interval * 3 <= KafkaSettings().session_timeout


@pytest.mark.parametrize(
    "variables, named",
    [
        ({"TIDEGATE_DRAIN_TIMEOUT": "60"}, "TIDEGATE_DRAIN_TIMEOUT"),
        ({"TIDEGATE_KAFKA_SESSION_TIMEOUT": "6"}, "TIDEGATE_KAFKA_HEARTBEAT_INTERVAL"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], named: str
) -> None:
    """Each is fine alone; together a revoke would outlast the rebalance, or one lost heartbeat the session."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(Misconfigured, match=named):
        read_settings()
