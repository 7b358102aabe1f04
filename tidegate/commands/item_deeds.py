"""Items of jobs by the clock, replayed or discarded: by `tidegate dlq` as letters, by `tidegate jobs` as items."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID

from dlq.runs import RunKind
from tidegate.app import App
from tidegate.commands.dlq_words import How
from tidegate.commands.jobs_asking import connected
from tidegate.commands.options import actor_of, print_json, say, settings_of, tell, wait_for
from tidegate.commands.readable import counted
from tidegate.console.item_plan import Chosen, ItemPlan, choose_items, plan_items
from tidegate.console.letters import LetterFilter
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.quarantine import (
    ItemChoice,
    Replayed,
    discard_items,
    refuse_items,
    replay_items,
)
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.errors import Conflict
from tidegate_kernel.permissions import Actor
from tidegate_kernel.postgres import Connection


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemAsking:
    """One command: which items of which job, what becomes of them, and how it was typed."""

    app: App
    job: ClockJob
    kind: RunKind
    wanted: ItemChoice | LetterFilter | Sequence[UUID]
    typed: str
    how: How

    def next_command(self, plan: ItemPlan) -> str:
        """What does it, to be pasted: the same words, bound to this plan."""
        reason = shlex.quote(self.how.said_reason) if self.how.said_reason else "'…'"
        force = " --force" if self.how.is_forced else ""
        return f"{self.typed}{force} --digest {plan.digest} --reason {reason} --yes"


def decide(asking: ItemAsking) -> None:
    """Shows the plan, or does it."""
    if asking.how.is_sure:
        _tell_done(asking, wait_for(_do(asking)))
        return
    _show(asking, wait_for(_plan(asking)))


async def _plan(asking: ItemAsking) -> ItemPlan:
    async with connected(settings_of()) as connection:
        return (await _planned(asking, connection))[1]


async def _planned(asking: ItemAsking, connection: Connection) -> tuple[Chosen, ItemPlan]:
    service, how = asking.app.service, asking.how
    if isinstance(asking.wanted, ItemChoice):
        chosen = Chosen([asking.wanted], {})
    else:
        chosen = await choose_items(connection, service, asking.job, asking.wanted, is_forced=how.is_forced)
    plan = await plan_items(
        connection,
        service,
        chosen,
        job=asking.job.code,
        kind=asking.kind,
        most_replays=settings_of().max_replays,
    )
    if how.digest not in (None, plan.digest):
        raise Conflict(
            f"the items are others, or have changed, since the plan {how.digest} was shown: now they are {plan.items} "
            f"with the digest {plan.digest}; look at the plan again"
        )
    return chosen, plan


async def _do(asking: ItemAsking) -> Replayed:
    async with connected(settings_of()) as connection:
        actor = await actor_of(settings_of(), connection)
        chosen, plan = await _planned(asking, connection)
        for hazard in plan.hazards:
            say(hazard.sentence)
        reason, service = asking.how.said_reason, asking.app.service
        await refuse_items(connection, actor, service, asking.kind, chosen.choices, reason=reason)
        done = [await _deed(asking, connection, actor, choice) for choice in chosen.choices]
    return Replayed(sum(each.items for each in done), [run for each in done for run in each.runs])


async def _deed(asking: ItemAsking, connection: Connection, actor: Actor, choice: ItemChoice) -> Replayed:
    app, reason, above = asking.app, asking.how.said_reason, settings_of().replay_approval_above
    if asking.kind is RunKind.REPLAY:
        now = SystemClock().now()
        return await replay_items(connection, actor, app.service, choice, reason=reason, now=now, approval_above=above)
    topic = app.dlq_topic(choice.job.job_code)
    count = await discard_items(
        connection, actor, app.service, choice, reason=reason, topic=topic, approval_above=above
    )
    return Replayed(count, [])


def _show(asking: ItemAsking, plan: ItemPlan) -> None:
    command = asking.next_command(plan) if plan.items else None
    if asking.how.as_json:
        told = asdict(plan) | {"reasons": dict(plan.reasons)}
        print_json({**told, "plan": plan.kind, "is_done": False, "next": command})
        return
    tell(*_told(plan))
    say(f"nothing was changed; to do it: {command}" if command else _nothing(asking))


def _nothing(asking: ItemAsking) -> str:
    if asking.job.partial_failure == "quarantine" or not isinstance(asking.wanted, ItemChoice):
        return "there is nothing to be done"
    return (
        f"there is nothing to be done: job {asking.job.code!r} quarantines nothing; name one that failed with --item, "
        f"as 'tidegate jobs items {asking.job.code}' shows it"
    )


def _told(plan: ItemPlan) -> Iterator[str]:
    items, occasions = counted(plan.items, "item"), counted(plan.occasions, "occasion")
    yield f"{plan.kind} of {items} of {occasions} of job {plan.job!r}, plan {plan.digest}"
    if plan.first_failed_at is not None:
        yield f"  the first since {plan.first_failed_at:%Y-%m-%d %H:%M:%SZ}"
    for reason, count in plan.reasons.items():
        yield f"  {count:,} {reason}"
    for hazard in plan.hazards:
        yield f"! {hazard.sentence}{f'; {hazard.remedy}' if hazard.remedy else ''}"


def _tell_done(asking: ItemAsking, done: Replayed) -> None:
    code = asking.job.code
    is_replay = asking.kind is RunKind.REPLAY
    if asking.how.as_json:
        told: dict[str, Any] = {"job": code, "is_done": True, "items": done.items}
        print_json(told | ({"runs": done.runs} if is_replay else {}))
    elif is_replay:
        runs = ", ".join(map(str, done.runs)) or "none"
        tell(f"items to be done again: {done.items}; runs: {runs}; 'tidegate jobs runs {code}' shows them")
    else:
        tell(f"items discarded: {done.items}")
