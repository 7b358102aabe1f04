"""Writes docs/settings.md from the settings classes; with --check, says whether the file is current.

What a type cannot tell stands here, one sentence a setting; a setting without a sentence is an error, and so is a
sentence without a setting.
"""

import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Literal, get_args, get_origin

from pydantic import SecretStr
from pydantic.fields import FieldInfo
from pydantic_settings import BaseSettings

from tidegate_kernel.settings import KafkaSettings, Settings

ROOT = Path(__file__).resolve().parents[1]
FILE = ROOT / "docs" / "settings.md"

_HEAD = """\
# Settings

<!-- Written by scripts/settings_doc.py from tidegate_kernel/settings.py; do not edit by hand. -->

Everything that differs between places is read once, at the start, from environment variables. Where the folder
`/run/secrets` exists, a file in it named as a variable, in either case, serves as well; the environment wins. A
wrong value ends the command with exit code 2 and names the variable, never the value.

Durations are seconds (`20`, `0.5`) or ISO 8601 (`PT1M30S`), from a millisecond to a day. Secrets are never logged or
printed; addresses are, so the URLs may hold no credentials. An empty variable means none where the default is none;
elsewhere it is refused.

When none of the four addresses is set, commands use the local servers of `make up`, if those were started from the
same directory.
"""

_COMMANDS = """
## Of the command line

| variable | meaning |
|---|---|
| `TIDEGATE_APP` | The application as `module:attribute`, where a command is not given `--app`. |
| `TIDEGATE_DEBUG` | `1` shows an expected error with its traceback instead of one line. |
"""

_MEANING = {
    "postgres_dsn": "Where positions, claims, dead letters and the outbox live, and what handlers write to.",
    "elasticsearch_url": "Used by jobs whose sink is Elasticsearch.",
    "elasticsearch_user": "Basic authentication; not used when there is an API key.",
    "elasticsearch_password": "Of that user.",
    "elasticsearch_api_key": "Comes before user and password.",
    "elasticsearch_ca_file": "Certificate authority of the server, if not one of the system's.",
    "clickhouse_url": "Used by jobs whose sink is ClickHouse.",
    "clickhouse_user": "Its user.",
    "clickhouse_password": "Of that user.",
    "clickhouse_database": "Where tables and views of sinks are made.",
    "clickhouse_ca_file": "Certificate authority of the server, if not one of the system's.",
    "token": "Access token of whoever runs a command that changes something: [access](access.md). Workers need none.",
    "token_file": "A file that holds it, where the variable itself is not set.",
    "http_host": "Where the probes and `/metrics` listen. A container needs `0.0.0.0`; they ask for no password.",
    "http_port": "Their port; 0 takes any free one, which the log line `worker.started` names.",
    "letter_backlog": "At so many dead letters that wait for its DLQ topic a job rests, until half are gone.",
    "outbox_limit": "At so many records that wait for Kafka runs by the clock rest; a consumer, of its topics.",
    "audit_retention": "How long rows of the audit are kept, a year at least: `730d`, `P730D`, seconds; or `never`.",
    "letter_retention": "How long a dead letter is kept after its end: `90d`, `P90D` or seconds; `never` keeps it.",
    "max_replays": "After so many replays in which it failed a dead letter is quarantined: the next needs `--force`.",
    "replay_rate": "Letters and parked events a second that a replay handles at most, where `--rate` does not say.",
    "replay_approval_above": "More letters at once wait for a second person, more items are refused. None: no limit.",
    "lanes": "Batches that a job has in hand at once. Each lane may hold a Postgres connection.",
    "drain_timeout": "How long a stop or a revoke waits for batches in hand. Has to be below the rebalance time-out.",
    "log_format": "`json` for machines, `console` for eyes.",
    "log_level": "The least that is logged.",
    "otlp_endpoint": "Base URL of an OTLP/HTTP collector; without it no trace is recorded.",
    "kafka_bootstrap": "One or more brokers, `host:port`, separated by commas.",
    "kafka_security_protocol": "How to talk to them.",
    "kafka_sasl_mechanism": "Used with the two SASL protocols.",
    "kafka_sasl_username": "For PLAIN and SCRAM.",
    "kafka_sasl_password": "For PLAIN and SCRAM.",
    "kafka_sasl_token_file": "For OAUTHBEARER; read anew at each login, so that a sidecar can renew it.",
    "kafka_ssl_ca_file": "Certificate authority of the brokers, if not one of the system's.",
    "kafka_ssl_cert_file": "Client certificate for mutual TLS.",
    "kafka_ssl_key_file": "Its key.",
    "kafka_ssl_check_hostname": "Whether the certificate must name the host.",
    "kafka_client_id": "What brokers call this client in their logs and quotas.",
    "kafka_instance_id": "Static membership: a restart within the session time-out moves no partition.",
    "kafka_session_timeout": "How long the group waits for a dead member before its partitions move.",
    "kafka_heartbeat_interval": "Has to be a third of the session time-out at the most.",
    "kafka_rebalance_timeout": "How long the group waits for members to give partitions up.",
    "kafka_request_timeout": "Of a single request.",
    "kafka_fetch_max_bytes": "Of one fetch from one broker.",
    "kafka_max_partition_fetch_bytes": "Of one partition in it; times the partitions assigned it bounds a buffer.",
}


def settings_document() -> str:
    """The whole text of docs/settings.md. Raises KeyError for a setting that nobody has described."""
    described = dict(_MEANING)
    general = list(_rows(Settings, "", described))
    kafka = list(_rows(KafkaSettings, "kafka_", described))
    if described:
        raise KeyError(f"no such settings: {', '.join(described)}")
    return "\n".join([_HEAD, _table("General", general), _table("Kafka", kafka)]) + _COMMANDS


def _table(title: str, rows: list[str]) -> str:
    return "\n".join([f"## {title}", "", "| variable | type | default | meaning |", "|---|---|---|---|", *rows, ""])


def _rows(settings: type[BaseSettings], group: str, described: dict[str, str]) -> Iterator[str]:
    for name, field in settings.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseSettings):
            continue
        variable = f"TIDEGATE_{group}{name}".upper()
        yield f"| `{variable}` | {_type(field)} | {_default(field)} | {described.pop(group + name)} |"


def _type(field: FieldInfo) -> str:
    annotation = field.annotation
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(annotation))
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not type(None)]
    names = {SecretStr: "secret", timedelta: "duration", str: "text", int: "integer", bool: "true, false", Path: "file"}
    return ", ".join(names[kind] for kind in kinds)


def _default(field: FieldInfo) -> str:
    match field.default:
        case None | "":
            return "none"
        case SecretStr() as secret:
            return f"`{secret.get_secret_value()}`" if secret.get_secret_value() else "none"
        case timedelta() as duration if duration >= timedelta(days=1):
            return f"`P{duration.days}D`"
        case timedelta() as duration:
            return f"`PT{duration.total_seconds():.0f}S`"
        case bool() as flag:
            return f"`{str(flag).lower()}`"
        case default:
            return f"`{default}`"


def main(arguments: list[str]) -> int:
    """0 if the file is current, or was written."""
    text = settings_document()
    if arguments == ["--check"]:
        is_current = FILE.exists() and FILE.read_text(encoding="utf-8") == text
        print(
            "docs/settings.md is current"
            if is_current
            else "docs/settings.md is not current; run python -m scripts.settings_doc"
        )
        return 0 if is_current else 1
    FILE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
