"""What can go wrong, one function a kind. Each strikes while records are in flight; some heal while others strike."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import Awaitable, Callable, Mapping
from enum import StrEnum
from random import Random

import asyncpg

from tests.chaos.flight import Flight
from tests.chaos.proxy import Proxy
from tests.chaos.scene import Scene
from tests.chaos.servers import OwnServer
from tests.chaos.workers import Worker

# A frozen worker has to outlive the session time-out that the scene sets (6 s), and then some.
_BEYOND_SESSION_SECONDS = 9.0
_STOP_GRACE_SECONDS = 20.0
_NOTHING = Flight(0, 0, 0)

_END_SESSIONS = """
SELECT count(pg_terminate_backend(pid))
FROM pg_stat_activity
WHERE datname = current_database() AND application_name LIKE 'tidegate %'
"""


class Fault(StrEnum):
    """The kinds."""

    WORKER_KILLED = "worker killed"
    WORKER_FROZEN = "worker frozen beyond its session"
    WORKER_RESTARTED = "worker stopped and started"
    WORKERS_SCALED = "workers scaled"
    KAFKA_KILLED = "kafka killed and started"
    POSTGRES_STOPPED_FAST = "postgres stopped fast and started"
    POSTGRES_STOPPED_AT_ONCE = "postgres stopped at once and started"
    POSTGRES_SESSIONS_ENDED = "postgres sessions ended"
    ELASTICSEARCH_FROZEN = "elasticsearch frozen"
    ELASTICSEARCH_RESTARTED = "elasticsearch stopped and started"
    CLICKHOUSE_FROZEN = "clickhouse frozen"
    CLICKHOUSE_RESTARTED = "clickhouse stopped and started"
    CONNECTIONS_DROPPED = "connections dropped"
    ANSWERS_TRUNCATED = "answers truncated"
    NETWORK_DELAYED = "network delayed"
    NETWORK_BLACK = "network black"


async def _worker_killed(scene: Scene, chance: Random) -> None:
    await asyncio.sleep(chance.uniform(0, 0.5))
    worker = await scene.fleet.pick(chance)
    flight = await _freeze_in_flight(scene, worker)
    worker.signal(signal.SIGKILL)
    scene.note(Fault.WORKER_KILLED, worker.name, flight)
    await worker.ended.wait()


async def _worker_frozen(scene: Scene, chance: Random) -> None:
    worker = await scene.fleet.pick(chance)
    flight = await _freeze_in_flight(scene, worker)
    scene.note(Fault.WORKER_FROZEN, worker.name, flight)
    scene.meanwhile(_thaw(worker))


async def _thaw(worker: Worker) -> None:
    await asyncio.sleep(_BEYOND_SESSION_SECONDS)
    worker.signal(signal.SIGCONT)


async def _worker_restarted(scene: Scene, chance: Random) -> None:
    worker = await scene.fleet.pick(chance)
    flight = await scene.in_flight()
    worker.signal(signal.SIGTERM)
    scene.note(Fault.WORKER_RESTARTED, worker.name, flight)
    async with asyncio.timeout(_STOP_GRACE_SECONDS):
        await worker.ended.wait()


async def _workers_scaled(scene: Scene, chance: Random) -> None:
    size = len(scene.fleet.workers)
    flight = await scene.in_flight()
    await scene.fleet.set_size(size + 1)
    scene.note(Fault.WORKERS_SCALED, f"from {size} to {size + 1} and back", flight)
    await scene.fleet.all_up()
    await asyncio.sleep(chance.uniform(0, 2))
    await scene.fleet.set_size(size)


async def _stopped(scene: Scene, chance: Random, server: OwnServer, *, by: signal.Signals, kind: Fault) -> None:
    """The server is gone for a while. It comes back while other things are struck."""
    await server.healing.acquire()
    flight = await scene.in_flight()
    await server.stop(by)
    scene.note(kind, server.name, flight)
    away_seconds = chance.uniform(0, 2)

    async def start_again() -> None:
        try:
            await asyncio.sleep(away_seconds)
            await server.start()
        finally:
            server.healing.release()

    scene.meanwhile(start_again())


async def _frozen(scene: Scene, chance: Random, server: OwnServer, *, kind: Fault) -> None:
    async with server.healing:
        flight = await scene.in_flight()
        async with server.frozen():
            scene.note(kind, server.name, flight)
            await asyncio.sleep(chance.uniform(2, 4))


async def _kafka_killed(scene: Scene, chance: Random) -> None:
    await _stopped(scene, chance, scene.kafka, by=signal.SIGKILL, kind=Fault.KAFKA_KILLED)


async def _postgres_stopped_fast(scene: Scene, chance: Random) -> None:
    await _stopped(scene, chance, scene.postgres, by=signal.SIGINT, kind=Fault.POSTGRES_STOPPED_FAST)


async def _postgres_stopped_at_once(scene: Scene, chance: Random) -> None:
    await _stopped(scene, chance, scene.postgres, by=signal.SIGQUIT, kind=Fault.POSTGRES_STOPPED_AT_ONCE)


async def _elasticsearch_restarted(scene: Scene, chance: Random) -> None:
    await _stopped(scene, chance, scene.elasticsearch, by=signal.SIGTERM, kind=Fault.ELASTICSEARCH_RESTARTED)


async def _clickhouse_restarted(scene: Scene, chance: Random) -> None:
    await _stopped(scene, chance, scene.clickhouse, by=signal.SIGTERM, kind=Fault.CLICKHOUSE_RESTARTED)


async def _elasticsearch_frozen(scene: Scene, chance: Random) -> None:
    await _frozen(scene, chance, scene.elasticsearch, kind=Fault.ELASTICSEARCH_FROZEN)


async def _clickhouse_frozen(scene: Scene, chance: Random) -> None:
    await _frozen(scene, chance, scene.clickhouse, kind=Fault.CLICKHOUSE_FROZEN)


async def _postgres_sessions_ended(scene: Scene, chance: Random) -> None:
    async with scene.postgres.healing:
        flight = await scene.in_flight()
        connection = await asyncpg.connect(scene.postgres.address, timeout=5)
        try:
            ended = await connection.fetchval(_END_SESSIONS)
        finally:
            connection.terminate()
        scene.note(Fault.POSTGRES_SESSIONS_ENDED, f"{ended} sessions", flight)


async def _connections_dropped(scene: Scene, chance: Random) -> None:
    proxies = _some(scene, chance)
    flight = await scene.in_flight()
    count = sum(proxy.drop() for proxy in proxies)
    scene.note(Fault.CONNECTIONS_DROPPED, f"{count} to {_named(proxies)}", flight if count else _NOTHING)


async def _answers_truncated(scene: Scene, chance: Random) -> None:
    proxies = _some(scene, chance)
    flight = await scene.in_flight()
    count = sum(proxy.truncate() for proxy in proxies)
    scene.note(Fault.ANSWERS_TRUNCATED, f"{count} of {_named(proxies)}", flight if count else _NOTHING)
    await asyncio.sleep(0.5)


async def _network_delayed(scene: Scene, chance: Random) -> None:
    proxies, seconds = _some(scene, chance), chance.uniform(0.05, 0.4)
    flight = await scene.in_flight()
    with contextlib.ExitStack() as delays:
        for proxy in proxies:
            delays.enter_context(proxy.delayed(seconds))
        scene.note(Fault.NETWORK_DELAYED, f"{seconds * 1000:.0f} ms to {_named(proxies)}", flight)
        await asyncio.sleep(chance.uniform(1, 3))


async def _network_black(scene: Scene, chance: Random) -> None:
    proxies = _some(scene, chance)
    flight = await scene.in_flight()
    with contextlib.ExitStack() as dark:
        for proxy in proxies:
            dark.enter_context(proxy.black())
        scene.note(Fault.NETWORK_BLACK, _named(proxies), flight)
        await asyncio.sleep(chance.uniform(1, 4))
    if chance.random() < 0.5:
        # A firewall that forgot its connections.
        for proxy in proxies:
            proxy.drop()


STRIKES: Mapping[Fault, Callable[[Scene, Random], Awaitable[None]]] = {
    Fault.WORKER_KILLED: _worker_killed,
    Fault.WORKER_FROZEN: _worker_frozen,
    Fault.WORKER_RESTARTED: _worker_restarted,
    Fault.WORKERS_SCALED: _workers_scaled,
    Fault.KAFKA_KILLED: _kafka_killed,
    Fault.POSTGRES_STOPPED_FAST: _postgres_stopped_fast,
    Fault.POSTGRES_STOPPED_AT_ONCE: _postgres_stopped_at_once,
    Fault.POSTGRES_SESSIONS_ENDED: _postgres_sessions_ended,
    Fault.ELASTICSEARCH_FROZEN: _elasticsearch_frozen,
    Fault.ELASTICSEARCH_RESTARTED: _elasticsearch_restarted,
    Fault.CLICKHOUSE_FROZEN: _clickhouse_frozen,
    Fault.CLICKHOUSE_RESTARTED: _clickhouse_restarted,
    Fault.CONNECTIONS_DROPPED: _connections_dropped,
    Fault.ANSWERS_TRUNCATED: _answers_truncated,
    Fault.NETWORK_DELAYED: _network_delayed,
    Fault.NETWORK_BLACK: _network_black,
}

QUICK = tuple(
    fault
    for fault in Fault
    if fault not in (Fault.ELASTICSEARCH_RESTARTED, Fault.WORKERS_SCALED, Fault.POSTGRES_STOPPED_FAST)
)
"""Those that heal within seconds, for the short form."""


async def _freeze_in_flight(scene: Scene, worker: Worker) -> Flight:
    """The worker is frozen, if possible with work in its hands; says what it holds."""
    assert worker.child is not None
    flight = _NOTHING
    for _ in range(scene.looks):
        worker.signal(signal.SIGSTOP)
        flight = await scene.look_at(worker)
        if flight.is_proven or not worker.child.is_alive:
            return flight
        worker.signal(signal.SIGCONT)
        await asyncio.sleep(scene.between_looks_seconds)
    worker.signal(signal.SIGSTOP)
    return flight


def _some(scene: Scene, chance: Random) -> list[Proxy]:
    """One road that is in use, or all of them at once."""
    proxies = [proxy for proxy in scene.proxies if proxy.is_in_use] or list(scene.proxies)
    return proxies if chance.random() < 0.25 else [chance.choice(proxies)]


def _named(proxies: list[Proxy]) -> str:
    return " and ".join(proxy.name for proxy in proxies)
