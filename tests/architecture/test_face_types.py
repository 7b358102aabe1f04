"""Declarations that do not fit together are the type checker's to find, before anything runs."""

import re
from pathlib import Path

import pytest
from mypy import api

DECLARATIONS = """\
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from tidegate import (
    CloudEvents, Context, Elasticsearch, Event, FoldJob, Json, ProjectionJob, Topic, Upsert, fold, handle,
    handle_batch, on
)


class Placed(msgspec.Struct):
    order: str


class Cancelled(msgspec.Struct):
    order: str


@dataclass(frozen=True)
class Record:
    order: str


@dataclass(frozen=True)
class Forget:
    order: str


def to_record(event: Event[Placed]) -> Record:
    return Record(event.data.order)


def document(event: Event[Placed]) -> Upsert:
    return Upsert(event.data.order, 1, {})


async def record(command: Record, ctx: Context[None]) -> None: ...
async def record_all(commands: Sequence[Record], ctx: Context[None]) -> None: ...
async def record_fetched(command: Record, ctx: Context[None], fetched: int) -> None: ...
async def fetch(command: Record, deps: None) -> str: return command.order


class Count(msgspec.Struct):
    n: int


class Sum(msgspec.Struct):
    cents: int


def count(state: Count | None, event: Event[Placed]) -> Count | None:
    return Count(1 if state is None else state.n + 1)


def order_of(event: Event[Placed]) -> str: return event.data.order
def shown(key: str, state: Count) -> dict[str, int]: return {key: state.n}
def summed(key: str, state: Sum) -> dict[str, int]: return {key: state.cents}


on("placed", Placed, to_record)
fold("placed", Cancelled, count)  # wrong: the function takes another model
on("placed", Cancelled, to_record)  # wrong: the function takes another model
handle(Record, record)
handle_batch(Record, record_all)
handle_batch(Forget, record_all)  # wrong: the function takes lists of another command
handle(Forget, record)  # wrong: the function takes another command
handle(Record, record_fetched, prepare=fetch)  # wrong: what prepare gives is not what the function takes
topics = [Topic("t", format=Json(), envelope=CloudEvents())]
sink = Elasticsearch(index="i", mappings={"properties": {}})
soon = timedelta(seconds=5)
routes = [on("placed", Placed, document)]
commands = [on("placed", Placed, to_record)]
ProjectionJob(
    code="a", topics=topics, unlisted="skip", runbook="-", freshness_sla=soon, sink=sink, events=routes
)
ProjectionJob(
    code="a", topics=topics, unlisted="skip", runbook="-", freshness_sla=soon, sink=sink,
    events=commands,  # wrong: a projection writes, it sends no commands
)
ProjectionJob(
    code="a", topics=topics, runbook="-", freshness_sla=soon, sink=sink, events=routes,
    unlisted="ignore",  # wrong: no such rule
)
counts = [fold("placed", Placed, count)]
FoldJob(
    code="a", topics=topics, unlisted="skip", runbook="-", freshness_sla=soon, sink=sink, events=counts, key=order_of,
    state=Count, render=shown,
)
FoldJob(
    code="a", topics=topics, unlisted="skip", runbook="-", freshness_sla=soon, sink=sink, events=counts, key=order_of,
    state=Count, render=summed,  # wrong: it renders another state
)
ProjectionJob(
    code="a", topics=topics, unlisted="skip", runbook="-", freshness_sla=soon, sink=sink,
    events=counts,  # wrong: a fold makes states, it writes nothing
)
ProjectionJob(
    code="a", topics=topics, unlisted="skip", runbook="-", freshness_sla=soon, sinks={"a": sink, "b": sink},
    events=routes,
)
"""


@pytest.mark.timeout(240)  # mypy reads all packages anew: ten seconds of a core that may be somebody else's
def test_wrong_pairs_do_not_type_check(tmp_path: Path) -> None:
    """`on` and `handle` are functions for this: mypy --strict refuses each wrong line, and no right one."""
    module = tmp_path / "declarations.py"
    module.write_text(DECLARATIONS)

    told, trouble, _ = api.run([str(module), "--strict", "--cache-dir", str(tmp_path / "cache")])

    refused = {int(line) for line in re.findall(r"declarations\.py:(\d+): error", told)}
    wrong = {number for number, line in enumerate(DECLARATIONS.splitlines(), 1) if "# wrong" in line}
    assert refused == wrong, told + trouble
