"""A job of the shop as the shared suite drives it, whatever its kind (`test_every_job.py`).

A job joins the suite with a class of its own below `TopicDriven` or `ClockDriven`: how it is offered something to do,
and what of that has been done. Items are counted as often as they acted, so that a double shows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Self

from tidegate.stack.names import StackAddresses
from tidegate_kernel.permissions import Action, Actor
from tidegate_kernel.postgres import Pool


@dataclass(frozen=True)
class Place:
    """Where a driven job works: a database of its own, real servers, a name that nobody else uses, a folder."""

    pool: Pool
    dsn: str
    stack: StackAddresses
    prefix: str
    folder: Path


class Driven(ABC):
    """One job on real servers. Use one after the other."""

    place: Place
    code: ClassVar[str]
    stops_at_failure: ClassVar[bool] = False
    """Whether what comes behind a failing item waits for it."""
    is_mended_by_work: ClassVar[bool] = True
    """Whether an item that can be done by now is done by the next work, without anybody asking for it."""
    makes_letters: ClassVar[bool] = True
    """Whether an item that cannot be done becomes a dead letter, which is published."""
    deed_by_hand: ClassVar[Action] = Action.DLQ_REPLAY
    """What `by_hand` is called in the audit."""

    @classmethod
    @abstractmethod
    def at(cls, place: Place) -> AbstractAsyncContextManager[Self]:
        """Yields the job, ready, with nothing to do."""

    @abstractmethod
    async def offer(self, count: int) -> None:
        """There are so many more items to be done."""

    @abstractmethod
    async def offer_bad(self) -> None:
        """There is one more, and it cannot be done until `mend`."""

    @abstractmethod
    async def mend(self) -> None:
        """Whatever cannot be done could be done by now."""

    @abstractmethod
    async def work(self) -> None:
        """A process has done what there was to do."""

    @abstractmethod
    async def trigger_again(self) -> None:
        """All that the job was triggered by comes once more, and was worked on."""

    @abstractmethod
    async def work_with_a_death(self) -> None:
        """A process ended while it worked, or lost what it knew of its progress; another has gone on."""

    @abstractmethod
    async def work_stopped(self) -> None:
        """A process was asked to stop while it worked, and has stopped."""

    async def go_on(self) -> None:
        """A process has done what one that was stopped has left."""
        await self.work()

    @abstractmethod
    async def contend(self) -> int:
        """Two processes are at the same work at once. Returns how many of them could finish something."""

    @abstractmethod
    async def by_hand(self, actor: Actor) -> None:
        """What failed is tried again because `actor` wants it. Raises Denied."""

    @abstractmethod
    async def done(self) -> int:
        """How often items have acted."""

    @abstractmethod
    async def failed(self) -> int:
        """How many items failed and wait for somebody, or for the next run."""

    @abstractmethod
    async def progress(self) -> int:
        """How many items the checkpoint has passed, by what is stored of it."""

    def began_behind(self) -> int | None:
        """How many items the latest work had behind it when it began, by what it asked for; None: it never asks."""
        return None

    async def events(self) -> int | None:
        """How many events are in the topic that the job publishes to; None for a job that publishes none."""
        return None

    @abstractmethod
    async def letters(self) -> int:
        """How many dead letters are in the topic of those of the job."""
