"""Consumer groups of the in-memory Kafka: members, and who gets which partition."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Protocol

from tidegate_kernel.event import TopicPartition


class Member(Protocol):
    """A member as its group sees it."""

    @property
    def topics(self) -> frozenset[str]: ...

    async def revoke(self) -> None:
        """Tells the member that a rebalance has begun; returns when it has let go of its partitions."""

    def assign(self, partitions: frozenset[TopicPartition]) -> None:
        """The member owns `partitions` and nothing else."""


class Group:
    """One consumer group. Rebalances are eager: everyone lets go of everything, then all get their new shares.

    `partitions` answers which partitions a topic has now.
    """

    def __init__(self, partitions: Callable[[str], Sequence[TopicPartition]]) -> None:
        self._partitions = partitions
        self._turn = asyncio.Lock()
        self.members: list[Member] = []
        self.committed: dict[TopicPartition, int] = {}

    async def join(self, member: Member) -> None:
        """The member has its share, and all others have heard of it."""
        self.members.append(member)
        await self.rebalance()

    def leave(self, member: Member) -> bool:
        """The member is out at once; the caller has to rebalance. False if it was not in."""
        if member not in self.members:
            return False
        self.members.remove(member)
        return True

    async def rebalance(self) -> None:
        """One round: all members are revoked and have answered, then each gets its new share."""
        async with self._turn:
            await asyncio.gather(*(member.revoke() for member in list(self.members)))
            for member, share in zip(self.members, self._shares(), strict=True):
                member.assign(share)

    def _shares(self) -> list[frozenset[TopicPartition]]:
        """Partitions in their order, dealt in turn to those who subscribed to the topic."""
        shares: list[set[TopicPartition]] = [set() for _ in self.members]
        topics = sorted({topic for member in self.members for topic in member.topics})
        partitions = [partition for topic in topics for partition in self._partitions(topic)]
        for turn, partition in enumerate(partitions):
            takers = [
                share for member, share in zip(self.members, shares, strict=True) if partition.topic in member.topics
            ]
            takers[turn % len(takers)].add(partition)
        return [frozenset(share) for share in shares]
