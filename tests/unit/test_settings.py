"""Settings: what is wrong is named in one line, what is secret is never shown."""

from __future__ import annotations

import os
import pickle
from datetime import timedelta
from pathlib import Path

import pytest

from tidegate_kernel import settings as module
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.postgres import address
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
        ("TIDEGATE_DRAIN_TIMEOUT", "0", "number of seconds, from 0.001 to 86400"),
        ("TIDEGATE_DRAIN_TIMEOUT", "nan", "number of seconds, from 0.001 to 86400"),
        ("TIDEGATE_DRAIN_TIMEOUT", "inf", "number of seconds, from 0.001 to 86400"),
        ("TIDEGATE_DRAIN_TIMEOUT", "20 ms", "number of seconds, from 0.001 to 86400"),
        ("TIDEGATE_KAFKA_REQUEST_TIMEOUT", "-1", "number of seconds, from 0.001 to 86400"),
        ("TIDEGATE_KAFKA_REQUEST_TIMEOUT", "1e-9", "number of seconds, from 0.001 to 86400"),
        ("TIDEGATE_KAFKA_SESSION_TIMEOUT", "1e9", "number of seconds, from 0.001 to 86400"),
        ("TIDEGATE_KAFKA_FETCH_MAX_BYTES", "9" * 40, "less than or equal to 2147483647"),
        ("TIDEGATE_KAFKA_BOOTSTRAP", "", "host:port"),
        ("TIDEGATE_KAFKA_BOOTSTRAP", "kafka:9092,", "host:port"),
        ("TIDEGATE_KAFKA_BOOTSTRAP", "kafka://hunter2:9092", "host:port"),
        ("TIDEGATE_KAFKA_BOOTSTRAP", "hunter2:99999", "host:port"),
        ("TIDEGATE_KAFKA_BOOTSTRAP", "hunter2: 9092", "host:port"),
        ("TIDEGATE_KAFKA_INSTANCE_ID", "hunter2 of us", "letters, digits"),
        ("TIDEGATE_KAFKA_CLIENT_ID", " ", "should not be empty"),
        ("TIDEGATE_KAFKA_SASL_PASSWORD", "hunter2\n", "line break"),
        ("TIDEGATE_ELASTICSEARCH_API_KEY", "hunter2\n", "line break"),
        ("TIDEGATE_CLICKHOUSE_DATABASE", "", "should not be empty"),
        ("TIDEGATE_HTTP_HOST", "", "should not be empty"),
        ("TIDEGATE_KAFKA_SECURITY_PROTOCOL", "sasl_ssl", "'PLAINTEXT', 'SSL', 'SASL_PLAINTEXT' or 'SASL_SSL'"),
        ("TIDEGATE_ELASTICSEARCH_URL", "https://elastic:hunter2@search:9200", "no credentials"),
        ("TIDEGATE_ELASTICSEARCH_URL", "hunter2:9200", "should be an address"),
        ("TIDEGATE_OTLP_ENDPOINT", "hunter2", "should be an address"),
        ("TIDEGATE_CLICKHOUSE_URL", "http://default:hunter2", "should be an address"),
        ("TIDEGATE_ELASTICSEARCH_URL", "http://search:99999", "should be an address"),
        ("TIDEGATE_CLICKHOUSE_URL", "http://default:hunter2@clickhouse:8123", "no credentials"),
        ("TIDEGATE_MAX_REPLAYS", "0", "greater than or equal to 1"),
        ("TIDEGATE_REPLAY_RATE", "0", "greater than or equal to 1"),
        ("TIDEGATE_REPLAY_APPROVAL_ABOVE", "-1", "should be 0 or more"),
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


@pytest.mark.parametrize(
    "dsn",
    [
        "",
        VALUE,
        f"tidegate:{VALUE}@postgres/shop",
        f"host=postgres password={VALUE}",
        f"postgresql+asyncpg://tidegate:{VALUE}@postgres/shop",
        f"postgresql://tidegate:{VALUE}/{VALUE}@postgres/shop",
        f"postgresql://tidegate:5432/{VALUE}@postgres/shop",
        f"postgresql://tidegate:{VALUE}?{VALUE}@postgres/shop",
        f"postgresql://tidegate:5432?{VALUE}@postgres/shop",
        f"postgresql://tidegate:{VALUE}#{VALUE}@postgres/shop",
        f"postgresql://tidegate:{VALUE}@postgres:port/shop",
        f"postgresql://tidegate:{VALUE}@postgres:99999/shop",
        f"postgresql://tidegate:{VALUE}@postgres/shop\n",
    ],
)
def test_dsn_that_cannot_be_meant_is_refused_whole(dsn: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A password with a slash in it would be read as a port or a database, and be shown as an address is."""
    monkeypatch.setenv("TIDEGATE_POSTGRES_DSN", dsn)

    message = refusal()

    assert message.startswith("wrong setting: TIDEGATE_POSTGRES_DSN: should")
    assert "hunter" not in message


@pytest.mark.parametrize(
    "dsn, shown",
    [
        ("postgresql://tidegate:hunter2@postgres:5433/shop", "postgres:5433/shop"),
        ("postgres://postgres/shop?sslmode=require", "postgres:5432/shop"),
        ("postgresql://tidegate:hunt%2Fer2@[::1]:5433/shop", "[::1]:5433/shop"),
        ("postgresql://tidegate:hunter2@one:5432,two:5433/shop", "one:5432,two:5433/shop"),
        ("postgresql://tidegate:hunter2@/shop?host=/var/run/postgresql", "/var/run/postgresql:5432/shop"),
        ("postgresql://", "localhost:5432"),
    ],
)
def test_dsn_is_shown_by_its_hosts_and_database(dsn: str, shown: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The address is what one compares first; user and password are no part of it."""
    monkeypatch.setenv("TIDEGATE_POSTGRES_DSN", dsn)
    assert address(read_settings().postgres_dsn.get_secret_value()) == shown


def test_empty_variable_is_none_where_none_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some orchestrators can only set a variable to nothing, not leave it out."""
    names = ("KAFKA_INSTANCE_ID", "KAFKA_SSL_CA_FILE", "ELASTICSEARCH_CA_FILE", "OTLP_ENDPOINT")
    for name in (*names, "REPLAY_APPROVAL_ABOVE"):
        monkeypatch.setenv(f"TIDEGATE_{name}", "")

    settings = read_settings()

    read = (
        settings.kafka.instance_id,
        settings.kafka.ssl_ca_file,
        settings.elasticsearch_ca_file,
        settings.otlp_endpoint,
        settings.replay_approval_above,
    )
    assert read == (None, None, None, None, None)


def test_brokers_are_taken_as_people_separate_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """A blank after the comma is not part of a host's name."""
    monkeypatch.setenv("TIDEGATE_KAFKA_BOOTSTRAP", "one:9092, two:9093,[::1]:9094")
    assert read_settings().kafka.bootstrap == "one:9092,two:9093,[::1]:9094"


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


DSN = f"postgresql://tidegate:{VALUE}@postgres/shop"
SECRETS = {
    "TIDEGATE_POSTGRES_DSN": DSN,
    "TIDEGATE_ELASTICSEARCH_PASSWORD": VALUE,
    "TIDEGATE_ELASTICSEARCH_API_KEY": VALUE,
    "TIDEGATE_CLICKHOUSE_PASSWORD": VALUE,
    "TIDEGATE_KAFKA_SASL_PASSWORD": VALUE,
}


def test_secrets_do_not_show_where_settings_are_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Settings end up in tracebacks and debug logs; no way of printing them shows a secret."""
    for variable, value in SECRETS.items():
        monkeypatch.setenv(variable, value)

    settings = read_settings()

    printed = [repr(settings), str(settings), f"{settings.kafka!r}", settings.model_dump_json(), repr(vars(settings))]
    assert not any("hunter" in text for text in printed)
    assert settings.postgres_dsn.get_secret_value() == DSN
    assert settings.kafka.sasl_password.get_secret_value() == VALUE
    assert pickle.loads(pickle.dumps(settings)) == settings


def test_secrets_come_from_files_where_an_orchestrator_mounts_them(tmp_path: Path) -> None:
    """One file a secret, named as its variable in either case; the line end that editors add is not part of it."""
    folder = tmp_path / "secrets"
    folder.mkdir()
    for variable, value in SECRETS.items():
        is_password = variable == "TIDEGATE_KAFKA_SASL_PASSWORD"
        (folder / (variable if is_password else variable.lower())).write_text(value if is_password else f"{value}\n")

    settings = read_settings()

    read = [
        settings.postgres_dsn,
        settings.elasticsearch_password,
        settings.elasticsearch_api_key,
        settings.clickhouse_password,
        settings.kafka.sasl_password,
    ]
    assert [secret.get_secret_value() for secret in read] == list(SECRETS.values())


def test_variable_wins_over_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A variable set by hand overrides what is mounted, as a person who sets it expects."""
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "tidegate_postgres_dsn").write_text("postgresql://from-the-file")
    monkeypatch.setenv("TIDEGATE_POSTGRES_DSN", "postgresql://from-the-variable")

    assert read_settings().postgres_dsn.get_secret_value() == "postgresql://from-the-variable"


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
        ({"TIDEGATE_ELASTICSEARCH_CA_FILE": "ca.pem"}, "TIDEGATE_ELASTICSEARCH_URL begins with http:"),
        ({"TIDEGATE_CLICKHOUSE_CA_FILE": "ca.pem"}, "TIDEGATE_CLICKHOUSE_URL begins with http:"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], named: str
) -> None:
    """Each is fine alone; together a revoke outlasts the rebalance, a heartbeat the session, or TLS is not used."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    with pytest.raises(Misconfigured, match=named):
        read_settings()


@pytest.mark.parametrize(
    "text, days",
    [("90d", 90), ("P30D", 30), ("86400", 1), (" 7D ", 7), ("never", None), ("Never", None), ("0", None)],
)
def test_letters_are_kept_for_days_or_for_ever(text: str, days: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ninety days in seconds is a number that nobody checks by eye."""
    monkeypatch.setenv("TIDEGATE_LETTER_RETENTION", text)

    assert read_settings().letter_retention == (None if days is None else timedelta(days=days))


@pytest.mark.parametrize("text", ["", "12h", "3600", "0d", "-1d", "90 days", "36526d", "nan"])
def test_too_short_or_unclear_time_for_letters_is_refused(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An hour written by mistake for a day would remove what was decided before anybody has looked at it."""
    monkeypatch.setenv("TIDEGATE_LETTER_RETENTION", text)

    assert refusal() == (
        "wrong setting: TIDEGATE_LETTER_RETENTION: should be a number of days, as 90d, P90D or 7776000 (seconds), "
        "at least 1, or never"
    )
