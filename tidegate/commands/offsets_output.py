"""How `tidegate offsets` shows positions and planned moves: as tables, and as `--json`."""

from __future__ import annotations

from typing import Any

import typer
from rich.markup import escape

from tidegate.commands.options import print_table
from tidegate.console.moves import Move
from tidegate.console.offsets import Plan
from tidegate.console.stands import PartitionOffsets


def print_plan(plan: Plan) -> None:
    """The plan stands on the terminal, with what to think of before it is done."""
    columns = ["partition", "position", "becomes", "passed unread", "why"]
    rows = [[str(each.partition), each.before, each.after, _skipped(each), each.cause] for each in plan.moves]
    print_table(columns, rows, right=["position", "becomes", "passed unread"])
    for each in plan.moves:
        if each.warning:
            typer.echo(f"{each.partition}: {each.warning}")


def _skipped(move: Move) -> str:
    return "-" if move.first_skipped is None else f"{move.skipped} ({move.first_skipped} to {move.after - 1})"


def print_offsets(job: str, shown: list[PartitionOffsets]) -> None:
    """Each partition stands on the terminal, then what is in the way, then what was passed unread."""
    columns = ["partition", "position", "log start", "log end", "state"]
    rows = [
        [str(each.partition), _text(each.position), _text(each.log_start),
         _text(each.log_end), _state(each)]
        for each in shown
    ]  # fmt: skip
    print_table(columns, rows, right=["position", "log start", "log end"])
    for each in shown:
        if each.obstacle is not None:
            typer.echo(f"{each.partition}: {each.obstacle.told(job)}")
    skipped = [
        [str(each.partition), one.first_offset, one.last_offset, one.cause,
         escape(one.actor), f"{one.skipped_at:%Y-%m-%d %H:%M:%SZ}", escape(one.reason)]
        for each in shown
        for one in each.skipped
    ]  # fmt: skip
    if skipped:
        typer.echo()
        print_table(["passed unread", "first", "last", "why", "by", "when", "reason"], skipped, right=["first", "last"])


def _text(offset: int | None) -> str:
    return "-" if offset is None else str(offset)


def _state(each: PartitionOffsets) -> str:
    if each.obstacle is not None:
        return each.obstacle.kind
    return "not begun" if each.position is None else "ok"


def plain_offsets(job: str, each: PartitionOffsets) -> dict[str, Any]:
    """A partition as `--json` tells it."""
    return {
        "topic": each.partition.topic,
        "partition": each.partition.partition,
        "position": each.position,
        "log_start": each.log_start,
        "log_end": each.log_end,
        "state": _state(each),
        "obstacle": None if each.obstacle is None else each.obstacle.told(job),
        "skipped": [one._asdict() for one in each.skipped],
    }


def plain_move(move: Move) -> dict[str, Any]:
    """A move as `--json` tells it."""
    return {
        "topic": move.partition.topic,
        "partition": move.partition.partition,
        "cause": move.cause,
        "before": move.before,
        "after": move.after,
        "first_skipped": move.first_skipped,
        "skipped": move.skipped,
        "warning": move.warning,
    }
