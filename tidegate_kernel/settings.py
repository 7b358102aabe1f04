"""Everything that differs between places, read once from `TIDEGATE_…` variables or files in `/run/secrets`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.setting_types import (
    DURATION_SHOULD,
    Brokers,
    Duration,
    Keeping,
    Name,
    OptionalCount,
    OptionalFile,
    OptionalInstance,
    OptionalWeb,
    PostgresDsn,
    Secret,
    Size,
    Text,
    Web,
)

_PREFIX = "TIDEGATE_"
_SECRETS_FOLDER = Path("/run/secrets")

LEAST_AUDIT_RETENTION = timedelta(days=365)
"""Whoever takes a worker over must not be able to take away what tells of it; the database refuses less, too."""


class KafkaSettings(BaseSettings):
    """How to reach Kafka: `TIDEGATE_KAFKA_…`."""

    model_config = SettingsConfigDict(env_prefix="TIDEGATE_KAFKA_", extra="ignore", frozen=True)

    bootstrap: Brokers = "127.0.0.1:9092"
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = "PLAIN"
    sasl_username: Text = ""
    sasl_password: Secret = SecretStr("")
    sasl_token_file: OptionalFile = None
    ssl_ca_file: OptionalFile = None
    ssl_cert_file: OptionalFile = None
    ssl_key_file: OptionalFile = None
    ssl_check_hostname: bool = True
    client_id: Name = "tidegate"
    instance_id: OptionalInstance = None
    session_timeout: Duration = timedelta(seconds=30)
    heartbeat_interval: Duration = timedelta(seconds=3)
    rebalance_timeout: Duration = timedelta(seconds=60)
    request_timeout: Duration = timedelta(seconds=30)
    fetch_max_bytes: Size = 8 * 1024 * 1024
    # 1 MiB a partition bounds a worker's buffer to assigned partitions x 1 MiB whatever the backlog.
    max_partition_fetch_bytes: Size = 1024 * 1024


class Settings(BaseSettings):
    """The settings of a process. Secrets are `SecretStr` and never printed."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="ignore", frozen=True)

    postgres_dsn: PostgresDsn = SecretStr("postgresql://127.0.0.1:5432/tidegate")
    elasticsearch_url: Web = "http://127.0.0.1:9200"
    elasticsearch_user: Text = ""
    elasticsearch_password: Secret = SecretStr("")
    elasticsearch_api_key: Secret = SecretStr("")
    elasticsearch_ca_file: OptionalFile = None
    clickhouse_url: Web = "http://127.0.0.1:8123"
    clickhouse_user: Name = "default"
    clickhouse_password: Secret = SecretStr("")
    clickhouse_database: Name = "default"
    clickhouse_ca_file: OptionalFile = None

    token: Secret = SecretStr("")
    token_file: OptionalFile = None

    http_host: Name = "127.0.0.1"
    http_port: int = Field(default=9464, ge=0, le=65535)
    lanes: int = Field(default=2, ge=1, le=64)
    # Letters have 1 KiB to 1 MiB: a job has 10 MiB to 10 GiB of them in the outbox at most.
    letter_backlog: int = Field(default=10_000, ge=1)
    # Of the whole database. Some hundred MB of events, and hours of an outage of Kafka for most jobs by the clock.
    outbox_limit: int = Field(default=100_000, ge=1)
    # A quarter: whoever looks at what went wrong in the last one still finds what was decided.
    letter_retention: Keeping = timedelta(days=90)
    # Nobody has asked for it to be forgotten: for how long an audit is to be kept differs from trade to trade.
    audit_retention: Keeping = None
    max_replays: int = Field(default=5, ge=1)
    # Well below what live consumers of the same database handle: the repair is not to be the next incident.
    replay_rate: int = Field(default=500, ge=1)
    replay_approval_above: OptionalCount = None
    # Shorter than Kafka's rebalance time-out: a revoke waits for it.
    drain_timeout: Duration = timedelta(seconds=20)
    log_format: Literal["json", "console"] = "json"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    otlp_endpoint: OptionalWeb = None
    kafka: KafkaSettings = Field(default_factory=KafkaSettings)

    @field_validator("http_port", mode="before")
    @classmethod
    def _plain_port(cls, value: Any) -> Any:
        return value.strip() if isinstance(value, str) else value

    def token_text(self) -> str:
        """The access token of whoever runs the command; empty if none was given. Raises Misconfigured."""
        given = self.token.get_secret_value().strip()
        if given or self.token_file is None:
            return given
        try:
            return self.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise Misconfigured(
                f"TIDEGATE_TOKEN_FILE: {str(self.token_file)!r} cannot be read ({type(error).__name__})"
            ) from None


def read_settings(**overrides: Any) -> Settings:
    """Reads the environment (and `/run/secrets` where it exists).

    Raises Misconfigured with every wrong variable named, never with its value.
    """
    secrets: dict[str, Any] = {"_secrets_dir": _SECRETS_FOLDER} if _SECRETS_FOLDER.is_dir() else {}
    wrong: list[str] = []
    try:
        kafka = KafkaSettings(**secrets)
    except ValidationError as error:
        wrong += _explain(error, "TIDEGATE_KAFKA_")
        kafka = KafkaSettings.model_construct()
    try:
        settings = Settings(kafka=kafka, **secrets, **overrides)
    except ValidationError as error:
        wrong += _explain(error, _PREFIX)
    except SettingsError:
        # Only `kafka` is more than a plain value; the library would read it from a variable of that name as JSON.
        wrong.append("TIDEGATE_KAFKA: no such setting; use the TIDEGATE_KAFKA_… settings")
    else:
        wrong += _contradictions(settings) if not wrong else []
        if not wrong:
            return settings
    raise Misconfigured(f"wrong setting: {'; '.join(wrong)}")


def _contradictions(settings: Settings) -> list[str]:
    """What is right by itself and wrong together."""
    kafka, wrong = settings.kafka, []
    if settings.drain_timeout >= kafka.rebalance_timeout:
        wrong.append("TIDEGATE_DRAIN_TIMEOUT: should be less than TIDEGATE_KAFKA_REBALANCE_TIMEOUT, which a revoke has")
    if kafka.heartbeat_interval * 3 > kafka.session_timeout:
        wrong.append("TIDEGATE_KAFKA_HEARTBEAT_INTERVAL: should be at most a third of TIDEGATE_KAFKA_SESSION_TIMEOUT")
    for server, url in (("ELASTICSEARCH", settings.elasticsearch_url), ("CLICKHOUSE", settings.clickhouse_url)):
        if url.startswith("http:") and getattr(settings, f"{server.lower()}_ca_file") is not None:
            wrong.append(f"TIDEGATE_{server}_CA_FILE: has no use while TIDEGATE_{server}_URL begins with http:")
    if settings.audit_retention is not None and settings.audit_retention < LEAST_AUDIT_RETENTION:
        wrong.append(f"TIDEGATE_AUDIT_RETENTION: should be {LEAST_AUDIT_RETENTION.days} days at least, or never")
    return wrong


def _explain(error: ValidationError, prefix: str) -> list[str]:
    return [f"{prefix}{'_'.join(map(str, e['loc'])).upper()}: {_requirement(e)}" for e in error.errors()]


def _requirement(error: ErrorDetails) -> str:
    if "timedelta" in error["msg"]:
        # Python's name for it helps nobody, and the library's words quote parts of the value.
        return DURATION_SHOULD
    return error["msg"].removeprefix("Value error, ").removeprefix("Input ")
