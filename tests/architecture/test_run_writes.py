"""Every write of a run carries the token of its lease, or is one transaction with a write that does."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tests.architecture.source import PACKAGES as ALL
from tests.architecture.source import ROOT
from tidegate_kernel.queries import load_queries

PACKAGES = ("tidegate.jobs.clockwork", "tidegate.jobs.clockwork.provider")
# What a run is, and what it leaves behind.
TABLES = ("job_run", "job_checkpoint", "job_item", "provider_cursor")
_WRITES = re.compile(rf"\b(INSERT INTO|UPDATE|DELETE FROM) tidegate\.({'|'.join(TABLES)})\b")

NO_RUNS = {
    "schedule_runs": "makes runs, which nobody has yet",
    "ask_for_run": "makes a run, which nobody has yet",
    "ask_for_replay": "makes a run, which nobody has yet",
    "cancel_due_run": "by hand, under the row's lock: nobody has it",
    "ask_to_cancel_run": "by hand, a wish that its holder reads",
    "replay_items": "by hand",
    "discard_items": "by hand",
    "drop_ended_runs": "upkeep of what has ended",
    "drop_done_items": "upkeep of what has ended",
    "drop_failed_items": "upkeep of what has ended",
}
"""Writes that are no run's own."""

FENCED_BY_THEIR_TRANSACTION = {
    "give_up_items": "settle_unit",
    "miss_item": "settle_unit",
    "give_back_items": "end_run, or end_stalled under the token that was found, or cancel_due_run: nobody has it",
    "forget_replaced": "end_run",
    "retry_run": "end_run, or end_stalled under the token that was found",
}
"""Writes of a run whose transaction has another one, fenced: it names the token, and fails for a stale holder."""

ELSEWHERE = {"dlq.forgetting": "items as letters: erased by hand, and what is long settled let go"}
"""Packages whose statements write what runs left behind, and are no run's."""


def _writing() -> Mapping[str, str]:
    return {name: text for package in PACKAGES for name, text in load_queries(package).items() if _WRITES.search(text)}


def test_every_write_of_a_run_carries_its_token() -> None:
    """A process that was frozen past its lease must not overwrite what its successor has done: one statement that
    forgets the token is enough."""
    bare = {name for name, text in _writing().items() if "token" not in _statement(text)}

    assert bare - set(NO_RUNS) == set(FENCED_BY_THEIR_TRANSACTION), "name the token, or say here why it need not"
    assert set(NO_RUNS) <= set(_writing()), "an exception that is gone would let the next of that name pass"


def test_statements_that_end_or_move_a_run_lock_its_lease() -> None:
    """The token alone is read at one moment; the lock keeps the lease from being taken before COMMIT."""
    for name in ("settle_unit", "end_run", "put_back"):
        text = _statement(load_queries(PACKAGES[0])[name])
        assert re.search(r"l\.token = \$3 FOR SHARE", text), name
        assert "r.token = h.token" in text, name


def test_checkpoints_and_results_keep_the_token() -> None:
    """Whoever looks into the tables finds under which ownership each of them was written."""
    written = {"settle_unit": "job_checkpoint", "take_items": "job_item", "move_sync": "provider_cursor"}

    for name, table in written.items():
        columns = re.search(rf"INSERT INTO tidegate\.{table} AS \w \(([^)]*)\)", _statement(_writing()[name]))
        assert columns is not None, name
        assert "token" in columns[1], name


def test_no_other_code_writes_what_is_a_runs() -> None:
    """A statement elsewhere would pass all of this unseen."""
    files = {
        file.relative_to(ROOT).parent.as_posix().replace("/", ".")
        for package in ALL
        for file in (ROOT / package).rglob("*.sql")
        if "migrations" not in file.parts and _WRITES.search(file.read_text(encoding="utf-8"))
    }

    assert files == {*PACKAGES, *ELSEWHERE}


def _statement(text: str) -> str:
    """Without its comments."""
    return re.sub(r"--[^\n]*", "", text)
