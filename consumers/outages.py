"""A breaker for each thing that a job needs: an outage is told apart from a bad batch, and waited out.

Lanes report trouble, and batches that are silent for long are trouble too. Then every dependency is probed on a fresh
connection. While one does not answer, the job's partitions rest: no attempt is made or counted, membership of the
group is kept. The probes go on, and what waited is tried at once when all answer again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime, timedelta
from functools import partial

import structlog

from consumers.ownership import Hold, Holding, Holdings
from tidegate_kernel import logs
from tidegate_kernel.clock import Clock
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.postgres import Connections, is_demoted
from tidegate_kernel.source import ClientDied, RecordSource

Probe = Callable[[], Awaitable[bool]]
"""Whether a dependency answers on a fresh connection. One that raises does not answer."""

POSTGRES = "postgres"
KAFKA = "kafka"

_log = structlog.get_logger(__name__)

# A probe that takes longer is a no. Together with the pause it bounds how late a recovery is noticed.
_PROBE_SECONDS = 3.0
# Whatever is cancelled ends within a turn or two of the event loop, or does not mean to.
_CANCEL_SECONDS = 0.1
_PROBE_AGAIN_SECONDS = 1.0
# A batch takes milliseconds; one in hand for longer may hang on a server that takes packets and never answers.
_SILENCE_SECONDS = 5.0
_LOOK_SECONDS = 1.0
# Long enough for a pooler that is short of connections to give one to the probe: nothing is away then.
_CUT_OFF_AFTER = timedelta(seconds=10)


class Outages:
    """The breakers of one job in this process. `open` says since when each dependency that is away has been so."""

    def __init__(
        self, job: str, probes: Mapping[str, Probe], *, clock: Clock, metrics: Metrics, connections: Connections
    ) -> None:
        self._job, self._probes, self._clock = job, dict(probes), clock
        self._metrics, self._connections = metrics, connections
        self._trouble = asyncio.Event()
        self._was_demoted = False
        self._stuck: dict[str, asyncio.Task[bool]] = {}
        self.open: dict[str, datetime] = {}
        for name in (*probes, KAFKA):
            metrics.breaker_open.labels(job, name).set(0)

    def suspect(self, error: BaseException) -> None:
        """Something failed in a way that an outage would explain; `watch` looks into it."""
        self._was_demoted |= is_demoted(error)
        self._trouble.set()

    async def all_answer(self) -> bool:
        """Whether everything the job's handlers need answers now; if not, the partitions rest from now on."""
        await self._look()
        if self._resting_for():
            self._trouble.set()
        return not self._resting_for()

    async def watch(self, source: RecordSource, holdings: Holdings) -> None:
        """Looks for outages and waits them out, until cancelled. Kafka is asked by `source`."""
        self._probes[KAFKA] = partial(_kafka_answers, source)
        while True:
            await self._until_trouble(holdings)
            await self._renew_if_demoted()
            await self._look()
            while self.open:
                self._rest_or_go_on(source, holdings)
                await self._clock.sleep(_PROBE_AGAIN_SECONDS)
                await self._look()
            self._rest_or_go_on(source, holdings)

    async def _until_trouble(self, holdings: Holdings) -> None:
        looked = self._clock.monotonic()
        while not self._trouble.is_set():
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._trouble.wait()
            except TimeoutError:
                if self._clock.monotonic() - looked > _SILENCE_SECONDS and any(map(self._is_silent, holdings.all())):
                    break
        self._trouble.clear()

    def _is_silent(self, held: Holding) -> bool:
        return held.in_hand_since is not None and self._clock.monotonic() - held.in_hand_since > _SILENCE_SECONDS

    async def _renew_if_demoted(self) -> None:
        """A pool goes on with connections to a demoted primary for ever, and each of them answers a SELECT."""
        if self._was_demoted:
            self._was_demoted = False
            await self._connections.renew()

    async def _look(self) -> None:
        probes = dict(self._probes)  # a handler may ask before `watch` has added Kafka's
        answers = await asyncio.gather(*(self._answers(name, probe) for name, probe in probes.items()))
        for name, answer in zip(probes, answers, strict=True):
            if answer and name in self.open:
                del self.open[name]
                self._metrics.breaker_open.labels(self._job, name).set(0)
                _log.warning(logs.BREAKER_CLOSED, job=self._job, dependency=name)
            elif not answer and name not in self.open:
                self.open[name] = self._clock.now()
                self._metrics.breaker_open.labels(self._job, name).set(1)
                _log.warning(logs.BREAKER_OPENED, job=self._job, dependency=name)

    async def _answers(self, name: str, probe: Probe) -> bool:
        """Whether the probe says yes in time. One that goes on although it was cancelled is left behind, and counts as
        a no for as long: another one beside it each second would be a leak."""
        if (stuck := self._stuck.get(name)) is not None and not stuck.done():
            stuck.cancel()
            return False
        asked = asyncio.create_task(_said_by(probe), name=f"probe-{name}")
        try:
            await asyncio.wait([asked], timeout=_PROBE_SECONDS)
        finally:
            asked.cancel()  # no effect once it is done
        if not asked.done() and not (await asyncio.wait([asked], timeout=_CANCEL_SECONDS))[0]:
            self._stuck[name] = asked
            _log.warning(logs.PROBE_STUCK, job=self._job, dependency=name)
            return False
        # What a user's probe raises is its way to say no.
        return not asked.cancelled() and asked.exception() is None and asked.result()

    def _resting_for(self) -> list[str]:
        """What batches cannot do without. Without Kafka there is nothing to read, but what is in hand can settle."""
        return sorted(self.open.keys() - {KAFKA})

    def _rest_or_go_on(self, source: RecordSource, holdings: Holdings) -> None:
        away = self._resting_for()
        for held in holdings.all():
            if away:
                held.hold(Hold.OUTAGE, f"{' and '.join(away)} does not answer", source)
            elif Hold.OUTAGE in held.holds:
                held.due = self._clock.monotonic()
                held.release(Hold.OUTAGE, source)
        since = self.open.get(POSTGRES)
        is_long_away = since is not None and self._clock.now() - since >= _CUT_OFF_AFTER
        if is_long_away and any(map(self._is_silent, holdings.all())):
            # Their server may never answer them, even when it is back.
            self._connections.cut()


async def _said_by(probe: Probe) -> bool:
    try:
        return await probe() is True
    except SystemExit:
        return False  # it would end the event loop, and with it the process


async def _kafka_answers(source: RecordSource) -> bool:
    try:
        source.require_alive()
    except ClientDied:
        return True  # a client that cannot ask says nothing of Kafka; it is replaced
    for partition in source.assignment():
        await source.topic_id(partition.topic)
        break
    return True
