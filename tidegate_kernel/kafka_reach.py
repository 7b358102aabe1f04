"""Says why Kafka cannot be reached. The client itself only logs it, and then tries again or says that it failed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from aiokafka.conn import collect_hosts, create_conn
from aiokafka.errors import IllegalSaslStateError, KafkaError
from aiokafka.protocol.metadata import MetadataRequest

from tidegate_kernel.errors import Misconfigured, Unreachable
from tidegate_kernel.kafka_connection import guard_connections, told_as_broken
from tidegate_kernel.kafka_options import connection_options
from tidegate_kernel.settings import KafkaSettings

_T = TypeVar("_T")

_DEADLINE_SECONDS = 15.0
# What a single connection takes of the options that the clients share.
_OF_A_CONNECTION = (
    "client_id",
    "request_timeout_ms",
    "security_protocol",
    "ssl_context",
    "sasl_mechanism",
    "sasl_plain_username",
    "sasl_plain_password",
    "sasl_oauth_token_provider",
)


@asynccontextmanager
async def started(
    client: Any, settings: KafkaSettings, *, close: Callable[[Any], Awaitable[None]]
) -> AsyncIterator[None]:
    """`client` (a consumer or admin client) runs inside, and is closed afterwards, also where it did not start.

    Raises Misconfigured if Kafka cannot be used, Unreachable where it does not answer.
    """
    guard_connections(client._client)
    try:
        await require_reachable(settings, connection_options(settings))
        await bounded(client.start(), settings)
        yield
    finally:
        await close(client)


async def bounded(starting: Awaitable[_T], settings: KafkaSettings) -> _T:
    """Returns what `starting` a client comes to. Raises as `started`."""
    try:
        return await asyncio.wait_for(starting, timeout=_DEADLINE_SECONDS)
    except (KafkaError, OSError, TimeoutError) as error:
        raise unusable(settings, f"{type(error).__name__}: {error}", error) from error


async def require_reachable(settings: KafkaSettings, options: Mapping[str, Any]) -> None:
    """Returns once one of the bootstrap servers has let us in. Raises Misconfigured with the last one's reason."""
    chosen = {name: options[name] for name in _OF_A_CONNECTION if name in options}
    try:
        async with asyncio.timeout(_DEADLINE_SECONDS):
            await _require_one(settings, chosen)
    except TimeoutError as error:
        raise unusable(settings, f"no answer within {_DEADLINE_SECONDS:g} s", error) from error


async def _require_one(settings: KafkaSettings, options: Mapping[str, Any]) -> None:
    failure: BaseException | None = None
    for host, port, _ in collect_hosts(settings.bootstrap):
        try:
            if await _names_brokers(host, port, options):
                return
        except (KafkaError, OSError, EOFError, TimeoutError) as error:
            failure = error
        else:
            # A broker that refuses an OAUTHBEARER token says so in a way that the client takes for a yes; what it
            # asks next is never answered.
            raise unusable(settings, "the broker answers, but does not let us in; is the token valid?")
    raise unusable(settings, _spell(failure), failure) from failure


async def _names_brokers(host: str, port: int, options: Mapping[str, Any]) -> bool:
    with told_as_broken():
        connection = await create_conn(host, port, **options)
        try:
            return bool((await connection.send(MetadataRequest([]))).brokers)
        finally:
            connection.close()


def unusable(settings: KafkaSettings, why: str, cause: BaseException | None = None) -> Misconfigured:
    """The error for a Kafka that is not as the settings say, or not there, as `cause` tells; one line."""
    kind = Misconfigured if cause is None or _is_refusal(cause) else Unreachable
    return kind(
        f"kafka at {settings.bootstrap} cannot be used over {_road(settings)}: {why}; "
        "check TIDEGATE_KAFKA_BOOTSTRAP and the TIDEGATE_KAFKA_SECURITY_…, _SASL_… and _SSL_… settings"
    )


def _is_refusal(error: BaseException) -> bool:
    """Whether a broker has said no, and will say it again."""
    return isinstance(error, KafkaError) and getattr(error, "errno", -1) > 0 and not error.retriable


def _road(settings: KafkaSettings) -> str:
    has_mechanism = settings.security_protocol.startswith("SASL")
    return f"{settings.security_protocol} {settings.sasl_mechanism}" if has_mechanism else settings.security_protocol


def _spell(failure: BaseException | None) -> str:
    if failure is None:
        return "no bootstrap server is given"
    if isinstance(failure, IllegalSaslStateError):
        return "the broker does not ask for a login at this address"
    # "closed" is all the client says; why stands below.
    cause = failure.__cause__ or failure
    if isinstance(cause, asyncio.IncompleteReadError):
        spoke = "does not speak Kafka's protocol" if cause.partial else "closed the connection without a word"
        return f"what listens there {spoke}"
    if isinstance(cause, (asyncio.CancelledError, TimeoutError)):
        return "no answer within TIDEGATE_KAFKA_REQUEST_TIMEOUT"
    text = str(cause.args[0]) if isinstance(cause, KafkaError) and cause.args else f"{type(cause).__name__}: {cause}"
    return " ".join(text.split()).removesuffix(":")
