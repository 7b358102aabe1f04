"""When a provider may be called: kept in Postgres, so that all processes of a service share rate, rest and circuit."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import timedelta
from typing import NamedTuple

from tidegate.jobs.clockwork.provider.declaration import Circuit, RateLimit
from tidegate_kernel.postgres import Connection, Pool, translated_errors
from tidegate_kernel.queries import load_queries

_QUERIES = load_queries(__package__)

# Longer than a handler's time limit: the answer of the one call that tries must find its place still held.
_TRIAL_BEYOND_HANDLER = timedelta(seconds=5)


class Admission(NamedTuple):
    """Whether somebody may call the provider, after `wait_seconds`; `is_trial`: it is the only call that may.

    Where nobody may: when it is worth asking again.
    """

    is_admitted: bool
    is_trial: bool
    wait_seconds: float


class Gate:
    """A provider as the processes of a service call it. Nothing is kept here: any number of gates are one.

    All of it raises Transient.
    """

    def __init__(
        self,
        pool: Pool,
        *,
        service: str,
        provider: str,
        rate_limit: RateLimit,
        circuit: Circuit,
        call_timeout: timedelta = timedelta(seconds=30),
    ) -> None:
        self._pool, self._name, self._circuit = pool, (service, provider), circuit
        self._spacing = rate_limit.spacing.total_seconds()
        self._trial_seconds = (call_timeout + _TRIAL_BEYOND_HANDLER).total_seconds()

    async def admit(self, *, patience: timedelta) -> Admission:
        """Returns whether and when the provider may be called; whoever may has a place of his own in the row.

        Nobody gets a place that he would wait for longer than `patience`: it would be lost to everybody.
        """
        async with self._connection() as connection:
            await connection.execute(_QUERIES["know_provider"], *self._name)
            row = await connection.fetchrow(
                _QUERIES["admit_call"], *self._name, self._spacing, patience.total_seconds(), self._trial_seconds
            )
        assert row is not None
        return Admission(*row.values())

    async def is_left_alone(self) -> bool:
        """Whether nobody may call now: for whoever waited for his place while the provider may have said so."""
        async with self._connection() as connection:
            return bool(await connection.fetchval(_QUERIES["is_left_alone"], *self._name))

    async def is_closed(self) -> bool:
        """Whether the circuit is: what the breaker of a job asks as its probe."""
        async with self._connection() as connection:
            return await connection.fetchval(_QUERIES["is_circuit_closed"], *self._name) is not False

    async def pause(self, seconds: float) -> None:
        """Nobody calls for so long; a longer pause that there is stays."""
        async with self._connection() as connection:
            await connection.execute(_QUERIES["pause_provider"], *self._name, seconds)

    async def answered(self, admission: Admission) -> None:
        """The provider answered, whatever it said. The circuit closes if it was asked by the call that tries."""
        async with self._connection() as connection:
            await connection.execute(_QUERIES["call_answered"], *self._name, admission.is_trial)

    async def failed(self, admission: Admission) -> None:
        """The provider did not answer. The circuit opens after so many in a row, and again if this one tried."""
        rule = self._circuit
        rests = (rule.rest.total_seconds(), rule.longest_rest.total_seconds())
        async with self._connection() as connection:
            await connection.execute(_QUERIES["call_failed"], *self._name, admission.is_trial, rule.failures, *rests)

    @property
    def provider(self) -> str:
        return self._name[1]

    @asynccontextmanager
    async def _connection(self) -> AsyncIterator[Connection]:
        with translated_errors("ask for a provider"):
            async with self._pool.acquire(timeout=10) as connection:
                yield connection
