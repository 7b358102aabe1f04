"""Everything that differs between places, read once from `TIDEGATE_…` variables or files in `/run/secrets`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import BeforeValidator, Field, SecretStr, ValidationError, field_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsConfigDict, SettingsError

from tidegate_kernel.errors import Misconfigured

_PREFIX = "TIDEGATE_"
_SECRETS_FOLDER = Path("/run/secrets")


def _from_seconds(value: Any) -> Any:
    """A variable says `20` or `1.5`; anything else is left to pydantic, which knows ISO 8601 (`PT20S`)."""
    try:
        return timedelta(seconds=float(value))
    except (TypeError, ValueError, OverflowError):
        return value


Duration = Annotated[timedelta, BeforeValidator(_from_seconds), Field(gt=timedelta(0))]
"""Seconds in a variable; longer than none."""


class KafkaSettings(BaseSettings):
    """How to reach Kafka: `TIDEGATE_KAFKA_…`."""

    model_config = SettingsConfigDict(env_prefix="TIDEGATE_KAFKA_", extra="ignore", frozen=True)

    bootstrap: str = "127.0.0.1:9092"
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512", "OAUTHBEARER"] = "PLAIN"
    sasl_username: str = ""
    sasl_password: SecretStr = SecretStr("")
    sasl_token_file: Path | None = None
    ssl_ca_file: Path | None = None
    ssl_cert_file: Path | None = None
    ssl_key_file: Path | None = None
    ssl_check_hostname: bool = True
    client_id: str = "tidegate"
    instance_id: str | None = None
    session_timeout: Duration = timedelta(seconds=30)
    heartbeat_interval: Duration = timedelta(seconds=3)
    rebalance_timeout: Duration = timedelta(seconds=60)
    request_timeout: Duration = timedelta(seconds=30)
    fetch_max_bytes: int = Field(default=8 * 1024 * 1024, gt=0)
    # 1 MiB a partition bounds a worker's buffer to assigned partitions x 1 MiB whatever the backlog.
    max_partition_fetch_bytes: int = Field(default=1024 * 1024, gt=0)


class Settings(BaseSettings):
    """The settings of a process. Secrets are `SecretStr` and never printed."""

    model_config = SettingsConfigDict(env_prefix=_PREFIX, extra="ignore", frozen=True)

    postgres_dsn: SecretStr = SecretStr("postgresql://127.0.0.1:5432/tidegate")
    elasticsearch_url: str = "http://127.0.0.1:9200"
    elasticsearch_user: str = ""
    elasticsearch_password: SecretStr = SecretStr("")
    elasticsearch_api_key: SecretStr = SecretStr("")
    elasticsearch_ca_file: Path | None = None
    clickhouse_url: str = "http://127.0.0.1:8123"
    clickhouse_user: str = "default"
    clickhouse_password: SecretStr = SecretStr("")
    clickhouse_database: str = "default"
    clickhouse_ca_file: Path | None = None

    token: SecretStr = SecretStr("")
    token_file: Path | None = None

    http_host: str = "127.0.0.1"
    http_port: int = Field(default=9464, ge=0, le=65535)
    lanes: int = Field(default=2, ge=1, le=64)
    # Shorter than Kafka's rebalance time-out: a revoke waits for it.
    drain_timeout: Duration = timedelta(seconds=20)
    log_format: Literal["json", "console"] = "json"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    otlp_endpoint: str | None = None
    kafka: KafkaSettings = Field(default_factory=KafkaSettings)

    @field_validator("elasticsearch_url", "clickhouse_url", "otlp_endpoint")
    @classmethod
    def _plain_address(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.netloc:
            raise ValueError("should be an address, as in http://127.0.0.1:9200")
        if "@" in parts.netloc:
            raise ValueError(
                "should hold no credentials: addresses are printed; the …_USER and …_PASSWORD settings are not"
            )
        return value

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
    return wrong


def _explain(error: ValidationError, prefix: str) -> list[str]:
    return [f"{prefix}{'_'.join(map(str, e['loc'])).upper()}: {_requirement(e)}" for e in error.errors()]


def _requirement(error: ErrorDetails) -> str:
    if "timedelta" in error["msg"]:
        # Python's name for it helps nobody, and the library's words quote parts of the value.
        return "should be a number of seconds, more than 0"
    return error["msg"].removeprefix("Value error, ").removeprefix("Input ")
