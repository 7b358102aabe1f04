"""What is typed and printed around a replay: words to a filter, a filter to the audit, a run to lines that add up."""

from __future__ import annotations

import shlex
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

import pytest

from dlq.runs import FailureGroup, Outcome, Run, RunKind, RunState
from dlq.states import LetterState
from tidegate.commands.dlq_run import go
from tidegate.commands.dlq_run_output import next_commands, plain_run, shown_progress, state_of, told_run
from tidegate.commands.dlq_words import How, Words
from tidegate.replaying import ReplayProgress
from tidegate_kernel.errors import Misconfigured, Reason

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)


def run_of(**more: Any) -> Run:
    told: dict[str, Any] = {
        "id": 17,
        "job": "ledger",
        "kind": RunKind.REPLAY,
        "state": RunState.DONE,
        "digest": "d",
        "letters": 10,
        "parked": 0,
        "failed_events": 0,
        "is_forced": False,
        "reason": "mended",
        "asked_by": "anna",
        "approved_by": None,
        "stop_asked_by": None,
        "holder": None,
        "created_at": NOON,
        "finished_at": None,
        "is_stalled": False,
        "outcomes": {},
    }
    return Run(**told | more)


def test_the_key_of_a_record_does_not_reach_the_audit() -> None:
    """It may be a customer's number, and the audit is for ever. What else was typed is kept as it was."""
    words = Words(job="ledger", failed_for=Reason.REJECTED, key="customer-17", since="24h")

    told = words.for_audit()

    assert told == {"job": "ledger", "failed-for": "rejected", "since": "24h", "key": "not kept"}


def test_words_are_spelled_so_that_they_can_be_pasted() -> None:
    """The last line of a plan is typed by whoever agrees with it: the same words, whatever is in them."""
    words = Words(letters=["a", "b"], type="payment made", tenant="", status=["dead", "quarantined"])

    spelled = shlex.split(shlex.join(words.spelled()))

    chosen = ["--letter", "a", "--letter", "b", "--type", "payment made", "--tenant", ""]
    assert spelled == [*chosen, "--status", "dead", "--status", "quarantined"]


def test_words_become_a_filter() -> None:
    """Without a state it is what is dead; a key is its bytes, also where they are no text."""
    wanted = Words(failed_for=Reason.NO_VALUE, error="x", key="\udcff").filter()

    assert (wanted.reason, wanted.states, wanted.error, wanted.key) == (
        Reason.NO_VALUE, [LetterState.DEAD], "x", b"\xff",
    )  # fmt: skip
    with pytest.raises(Misconfigured, match="--since"):
        Words(since="yesterday").filter()
    with pytest.raises(Misconfigured, match="nothing lies between"):
        Words(since="1h", until="2h").filter()


@pytest.mark.parametrize(
    "words, more, told",
    [
        (Words(job="ledger"), {"resume": 1}, "as it is"),
        (Words(), {"resume": 1, "is_forced": True}, "as it is"),
        (Words(letters=["a"], tenant="acme"), {}, "one or the other"),
        (Words(tenant="acme"), {"from_topic": True}, "--from-topic needs --job"),
        (Words(), {}, "say which letters"),
    ],
)
def test_words_that_contradict_each_other_are_refused(words: Words, more: dict[str, Any], told: str) -> None:
    """Before an application is loaded or a server asked: which of the two was meant is nothing to guess."""
    how = How(reason="r", is_sure=True, **more)

    with pytest.raises(Misconfigured, match=told):
        go(None, RunKind.REPLAY, words, how)


def test_the_lines_about_a_run_add_up() -> None:
    """Whoever reads them must not have to look for what is missing."""
    outcomes = {Outcome.RESOLVED: 6, Outcome.FAILED: 2, Outcome.BEHIND: 1}
    group = FailureGroup("rejected", "f", "Rejected", "no such account", 2, UUID(int=1))

    lines = list(told_run(run_of(outcomes=outcomes, parked=1234), [group]))

    counted = [int(line.split()[0]) for line in lines[1:5]]
    assert (counted, sum(counted)) == ([6, 2, 1, 1], 10)
    assert "1 undecided" in lines[4]
    assert lines[5] == "  1,234 parked events taken up"
    assert "2 failed with rejected f: Rejected: no such account (as " in lines[6]
    assert lines[7] == "next: tidegate dlq replay --resume 17"
    told = plain_run(run_of(outcomes=outcomes))
    assert sum(told["outcomes"].values()) + told["undecided"] == told["letters"]


def test_events_that_failed_in_their_turn_are_told_with_where_they_are() -> None:
    """The run's letters may all have ended well, and the exit code is 1: why, and what to type, stands below."""
    outcomes = {Outcome.DISCARDED: 10}

    *_, one = told_run(run_of(outcomes=outcomes, parked=1, failed_events=1), [])
    *_, two = told_run(run_of(outcomes=outcomes, parked=9, failed_events=2), [])

    where = "now: 'tidegate dlq list --job ledger'"
    assert one == f"  1 parked event taken up, of which 1 failed and is a dead letter {where}"
    assert two == f"  9 parked events taken up, of which 2 failed and are dead letters {where}"


@pytest.mark.parametrize(
    "run, state, commands",
    [
        (run_of(outcomes={Outcome.RESOLVED: 10}), "done", []),
        (run_of(outcomes={Outcome.FAILED: 10}), "done", []),
        (run_of(state=RunState.RUNNING), "running", ["tidegate dlq stop 17 --reason '…'"]),
        (run_of(state=RunState.RUNNING, stop_asked_by="bert"), "running", []),
        (run_of(state=RunState.RUNNING, is_stalled=True), "stalled: its runner is gone",
         ["tidegate dlq replay --resume 17"]),
        (run_of(state=RunState.STOPPED, kind=RunKind.DISCARD), "stopped", ["tidegate dlq discard --resume 17"]),
        (run_of(state=RunState.WAITING), "waits for a second person",
         ["tidegate dlq approve 17 --reason '…'", "tidegate dlq replay --resume 17"]),
        (run_of(state=RunState.WAITING, approved_by="bert"), "approved by bert, not begun",
         ["tidegate dlq replay --resume 17"]),
    ],
)  # fmt: skip
def test_each_state_of_a_run_has_its_next_commands(run: Run, state: str, commands: list[str]) -> None:
    """At night nobody reads a manual: what can be done now stands below what is true now."""
    assert (state_of(run), list(next_commands(run))) == (state, commands)


def test_a_run_is_clean_when_all_came_to_an_end_and_nothing_behind_them_failed() -> None:
    """The exit code is this: a script goes on only if nobody has to look again."""
    ended = {Outcome.RESOLVED: 4, Outcome.ALREADY_PROCESSED: 2, Outcome.SUPERSEDED: 2, Outcome.DISCARDED: 2}

    assert run_of(outcomes=ended).is_clean
    assert not run_of(outcomes=ended, failed_events=1).is_clean
    for left in (Outcome.FAILED, Outcome.REFUSED, Outcome.BEHIND, Outcome.NOT_TRIED):
        assert not run_of(outcomes=ended | {Outcome.RESOLVED: 3, left: 1}).is_clean
    assert not run_of(outcomes={Outcome.RESOLVED: 9}).is_clean


def test_progress_is_a_line_for_each_tenth(capsys: pytest.CaptureFixture[str]) -> None:
    """In a log of a Kubernetes Job, ten lines and not ten thousand."""
    with shown_progress(RunKind.DISCARD) as show:
        for done in range(101):
            show(ReplayProgress(done, 100, done))
        show(ReplayProgress(0, 0, 0))

    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert lines[0] == "discard: 0 of 100 letters"
    assert lines[-1] == "discard: 100 of 100 letters, 100 parked events"
