"""Everything that differs between places, read once from `TIDEGATE_…` variables or files in `/run/secrets`."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, ValidationError, field_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from tidegate_kernel.errors import Misconfigured

_PREFIX = "TIDEGATE_"


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
    session_timeout: timedelta = timedelta(seconds=30)
    heartbeat_interval: timedelta = timedelta(seconds=3)
    rebalance_timeout: timedelta = timedelta(seconds=60)
    request_timeout: timedelta = timedelta(seconds=30)
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

    http_host: str = "127.0.0.1"
    http_port: int = Field(default=9464, ge=0, le=65535)
    lanes: int = Field(default=2, ge=1, le=64)
    # Shorter than Kafka's rebalance time-out: a revoke waits for it.
    drain_timeout: timedelta = timedelta(seconds=20)
    log_format: Literal["json", "console"] = "json"
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    otlp_endpoint: str | None = None
    kafka: KafkaSettings = Field(default_factory=KafkaSettings)

    @field_validator("http_port", mode="before")
    @classmethod
    def _plain_port(cls, value: Any) -> Any:
        return value.strip() if isinstance(value, str) else value


def read_settings(**overrides: Any) -> Settings:
    """Reads the environment (and `/run/secrets` where it exists).

    Raises Misconfigured with every wrong variable named, never with its value.
    """
    secrets: dict[str, Any] = {"_secrets_dir": "/run/secrets"} if Path("/run/secrets").is_dir() else {}
    try:
        kafka = KafkaSettings(**secrets)
    except ValidationError as error:
        raise Misconfigured(_explain(error, "TIDEGATE_KAFKA_")) from None
    try:
        return Settings(kafka=kafka, **secrets, **overrides)
    except ValidationError as error:
        raise Misconfigured(_explain(error, _PREFIX)) from None


def _explain(error: ValidationError, prefix: str) -> str:
    wrong = (f"{prefix}{'_'.join(map(str, e['loc'])).upper()}: {e['msg'].lower()}" for e in error.errors())
    return "wrong setting: " + "; ".join(wrong)
