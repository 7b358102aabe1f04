"""What the Kafka clients are told: every option that matters is stated, dangerous defaults are overruled."""

from __future__ import annotations

import asyncio
import ssl
from pathlib import Path
from typing import Any

from aiokafka.abc import AbstractTokenProvider

from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.settings import KafkaSettings

# The client leaves the group when nobody polled for this long. Whether we are alive is our own watchdog's question
# (handlers are cut off, outages pause partitions), so its idle timer must never fire.
_NEVER_IDLE_MS = 24 * 3600 * 1000


class _TokenFile(AbstractTokenProvider):  # type: ignore[misc]  # the client ships no types
    """OAUTHBEARER token read from a file at each login, as a sidecar renews it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    async def token(self) -> str:
        return await asyncio.to_thread(lambda: self._path.read_text(encoding="utf-8").strip())


def connection_options(settings: KafkaSettings) -> dict[str, Any]:
    """Options that consumer, producer and admin client share. Raises Misconfigured for files that cannot be used."""
    options: dict[str, Any] = {
        "bootstrap_servers": settings.bootstrap,
        "client_id": settings.client_id,
        "request_timeout_ms": int(settings.request_timeout.total_seconds() * 1000),
        "security_protocol": settings.security_protocol,
        # Outlives a laptop's lid: a new partition or leader is seen within half a minute.
        "metadata_max_age_ms": 30_000,
    }
    if settings.security_protocol.endswith("SSL"):
        options["ssl_context"] = _ssl_context(settings)
    if settings.security_protocol.startswith("SASL"):
        options["sasl_mechanism"] = settings.sasl_mechanism
        if settings.sasl_mechanism == "OAUTHBEARER":
            if settings.sasl_token_file is None:
                raise Misconfigured("TIDEGATE_KAFKA_SASL_TOKEN_FILE is needed with OAUTHBEARER")
            options["sasl_oauth_token_provider"] = _TokenFile(settings.sasl_token_file)
        else:
            options["sasl_plain_username"] = settings.sasl_username
            options["sasl_plain_password"] = settings.sasl_password.get_secret_value()
    return options


def consumer_options(settings: KafkaSettings, *, group: str | None) -> dict[str, Any]:
    """The complete, explicit consumer configuration. Nothing is decoded in the client and nothing commits by itself."""
    return {
        **connection_options(settings),
        "group_id": group,
        "group_instance_id": settings.instance_id if group else None,
        "enable_auto_commit": False,
        "auto_offset_reset": "none",
        "isolation_level": "read_committed",
        "check_crcs": True,
        "key_deserializer": None,
        "value_deserializer": None,
        "max_poll_records": None,
        # A broker answers a connection's requests in turn: what we ask about offsets waits this long for a fetch.
        "fetch_max_wait_ms": 200,
        "fetch_max_bytes": settings.fetch_max_bytes,
        "max_partition_fetch_bytes": settings.max_partition_fetch_bytes,
        "session_timeout_ms": int(settings.session_timeout.total_seconds() * 1000),
        "heartbeat_interval_ms": int(settings.heartbeat_interval.total_seconds() * 1000),
        "rebalance_timeout_ms": int(settings.rebalance_timeout.total_seconds() * 1000),
        "max_poll_interval_ms": _NEVER_IDLE_MS,
    }


def producer_options(settings: KafkaSettings) -> dict[str, Any]:
    """The complete producer configuration: idempotent, acknowledged by all in-sync replicas."""
    return {
        **connection_options(settings),
        "acks": "all",
        "enable_idempotence": True,
        "linger_ms": 5,
        # The broker's own limit is the one that counts; the client's must not be smaller.
        "max_request_size": 64 * 1024 * 1024,
        "compression_type": "lz4",
    }


def _ssl_context(settings: KafkaSettings) -> ssl.SSLContext:
    try:
        context = ssl.create_default_context(cafile=settings.ssl_ca_file)
        context.check_hostname = settings.ssl_check_hostname
        if settings.ssl_cert_file is not None:
            context.load_cert_chain(settings.ssl_cert_file, settings.ssl_key_file)
    except (OSError, ssl.SSLError) as error:
        raise Misconfigured(f"TIDEGATE_KAFKA_SSL_…: the files cannot be used ({error})") from error
    return context
