"""The four servers and the setting under which Tidegate looks for each."""

from dataclasses import dataclass, fields
from enum import StrEnum


class ServerName(StrEnum):
    """The servers of a stack."""

    KAFKA = "kafka"
    POSTGRES = "postgres"
    ELASTICSEARCH = "elasticsearch"
    CLICKHOUSE = "clickhouse"

    @property
    def setting(self) -> str:
        """The environment variable that carries this server's address; it is Tidegate's own setting."""
        return _SETTINGS[self]


_SETTINGS = {
    ServerName.KAFKA: "TIDEGATE_KAFKA_BOOTSTRAP",
    ServerName.POSTGRES: "TIDEGATE_POSTGRES_DSN",
    ServerName.ELASTICSEARCH: "TIDEGATE_ELASTICSEARCH_URL",
    ServerName.CLICKHOUSE: "TIDEGATE_CLICKHOUSE_URL",
}


@dataclass(frozen=True)
class StackAddresses:
    """Where the servers listen; empty for a server that was not asked for."""

    kafka_bootstrap: str = ""
    postgres_dsn: str = ""
    elasticsearch_url: str = ""
    clickhouse_url: str = ""

    @classmethod
    def of(cls, addresses: dict[ServerName, str]) -> "StackAddresses":
        by_setting = {name.setting.removeprefix("TIDEGATE_").lower(): address for name, address in addresses.items()}
        return cls(**{field.name: by_setting.get(field.name, "") for field in fields(cls)})
