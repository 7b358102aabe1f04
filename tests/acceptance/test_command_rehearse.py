"""`tidegate dlq replay --rehearse` as an operator types it before a replay."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.acceptance.cli import Cli
from tests.acceptance.letters import Letters, Rows, produce, run_ledger

pytestmark = [pytest.mark.servers, pytest.mark.timeout(240)]

MENDED = {"TIDEGATE_APP": "mended:app"}


@pytest.fixture(scope="module")
def failed(admin_cli: Cli) -> Cli:
    """Of key k the first payment was refused, the second waits behind it. Nothing runs any more."""
    produce(admin_cli, ("k", "first", -5), ("k", "second", 7))
    run_ledger(admin_cli, "dead_letter.kept")
    return admin_cli


@pytest.fixture
def letters(failed: Cli, rows: Rows) -> Iterator[Letters]:
    """No letters but those that a test keeps, and the one of key k."""
    kept = Letters(failed)
    yield kept
    rows('DELETE FROM tidegate.dead_letter WHERE "offset" >= 1000')


def state(rows: Rows) -> list[str]:
    """All that a replay would change. The anchors of the audit go through the outbox, too."""
    tables = ("tidegate.dead_letter", "tidegate.parked", "tidegate.blocked_key", "tidegate.inbox", "tidegate.outbox",
              "tidegate.replay", "tidegate.replay_letter", "tidegate.correction", "payment")  # fmt: skip
    return [
        row["row"]
        for table in tables
        for row in rows(
            f"SELECT t::text AS row FROM {table} AS t WHERE to_jsonb(t)->>'kind' IS DISTINCT FROM 'audit' ORDER BY 1"
        )
    ]


def test_what_would_pass_is_told_and_nothing_changed(failed: Cli, letters: Letters, rows: Rows) -> None:
    """Before the deployment all would fail as they did, after it all would pass; both answers move nothing."""
    letters.keep("third", "fourth")
    before = state(rows)

    as_ever = failed.run("dlq", "replay", "--job", "ledger", "--rehearse")
    mended = failed.run("dlq", "replay", "--job", "ledger", "--rehearse", **MENDED)

    assert (as_ever.returncode, mended.returncode) == (1, 0), mended.stderr
    assert "3 would fail or be refused" in as_ever.stdout
    assert "would fail with rejected" in as_ever.stdout
    assert "3 would pass" in mended.stdout
    assert "of the events parked behind them 1 would pass, 0 fail" in mended.stdout
    assert "nothing was changed; the plan of the replay: tidegate dlq replay --job ledger" in mended.stderr
    assert state(rows) == before


def test_half_of_them_would_pass(failed: Cli, letters: Letters) -> None:
    """As JSON the numbers add up, and each kind of failure has a sample."""
    good, bad = letters.keep("good", "bad")
    environment = MENDED | {"MENDED_REFUSED": "bad"}

    told = failed.run("dlq", "replay", *letters.named(), "--rehearse", "--json", **environment)

    assert told.returncode == 1, told.stderr
    rehearsal = json.loads(told.stdout)["rehearsal"]
    assert (rehearsal["letters"], rehearsal["passing"], rehearsal["failing"]) == (2, 1, 1)
    (failure,) = rehearsal["failures"]
    assert (failure["sample"], failure["reason"], failure["letters"]) == (bad, "rejected", 1)
    assert good != bad


def test_a_rehearsal_needs_the_permission_of_a_replay_and_is_audited(failed: Cli, letters: Letters, rows: Rows) -> None:
    """It runs handlers, and shows errors that may tell something: a viewer does not. It needs no reason."""
    letters.keep("fifth")
    viewer = failed.run("tokens", "create", "viola", "--role", "viewer").stdout.strip()
    choice = ("dlq", "replay", *letters.named(), "--rehearse")

    refused = failed.run(*choice, **MENDED, TIDEGATE_TOKEN=viewer)
    done = failed.run(*choice, **MENDED)

    assert (refused.returncode, done.returncode) == (3, 0), done.stderr
    assert "is refused" in refused.stderr
    audit = rows("SELECT actor, action, outcome, parameters->>'what' AS what FROM tidegate.audit "
                 "WHERE action LIKE 'dlq:%' ORDER BY seq DESC LIMIT 2")  # fmt: skip
    assert [(row["action"], row["outcome"], row["what"]) for row in audit] == [
        ("dlq:replay", "done", "rehearse"),
        ("dlq:replay", "denied", "rehearse"),
    ]


def test_a_rehearsal_is_not_a_replay(failed: Cli) -> None:
    """--yes beside it would leave open what was meant."""
    told = failed.run("dlq", "replay", "--job", "ledger", "--rehearse", "--yes", "--reason", "-")

    assert told.returncode == 2
    assert "--rehearse changes nothing" in told.stderr
