"""Which class a failure belongs to: what a repeat can cure, and what not."""

import asyncpg
import pytest

from consumers.failure import FailureClass, classify
from tidegate_kernel.errors import Rejected, RetryLater, Transient
from tidegate_kernel.postgres import is_transient


@pytest.mark.parametrize(
    "error",
    [
        Transient("away"),
        RetryLater(),
        ConnectionResetError(),
        TimeoutError(),
        asyncpg.ReadOnlySQLTransactionError("x"),
        asyncpg.AdminShutdownError("x"),
        asyncpg.TooManyConnectionsError("x"),
        asyncpg.LockNotAvailableError("x"),
        asyncpg.ConnectionDoesNotExistError("x"),
        asyncpg.InterfaceError("connection is closed"),
    ],
)
def test_what_a_repeat_can_cure_is_transient(error: Exception) -> None:
    """These roll back, wait and are tried again; none of them is the record's fault."""
    assert classify(error) is FailureClass.TRANSIENT


@pytest.mark.parametrize(
    "error",
    [
        ValueError("x"),
        asyncpg.QueryCanceledError("x"),
        asyncpg.DataError("x"),
        FileNotFoundError(),
        ZeroDivisionError(),
    ],
)
def test_what_a_handler_does_wrong_is_unexpected(error: Exception) -> None:
    """Retried a few times and then a dead letter; never taken for an outage."""
    assert classify(error) is FailureClass.UNEXPECTED


@pytest.mark.parametrize("error", [asyncpg.DeadlockDetectedError("x"), asyncpg.SerializationError("x")])
def test_victim_of_a_collision_is_nobodys_fault(error: Exception) -> None:
    """Postgres chose one of two transactions at random: neither counts an attempt."""
    assert classify(error) is FailureClass.COLLISION


def test_a_full_disk_is_nobodys_fault() -> None:
    """Its probe only reads, and reads are answered: no record may pay for the statements that are not."""
    assert classify(asyncpg.DiskFullError("x")) is FailureClass.FULL


@pytest.mark.parametrize("error", [asyncpg.InvalidCachedStatementError("x"), asyncpg.OutdatedSchemaCacheError("x")])
def test_a_migration_meanwhile_is_nobodys_fault(error: Exception) -> None:
    """The table is another one than a moment ago: the statement is fine, and so is the record."""
    assert classify(error) is FailureClass.COLLISION
    assert is_transient(error), "also where the statement is our own"


@pytest.mark.parametrize(
    "state, told, expected",
    [
        ("23505", "doppelter Schlüsselwert verletzt Unique-Constraint „effect_pkey“", FailureClass.UNEXPECTED),
        ("57P03", "das Datenbanksystem startet", FailureClass.TRANSIENT),
        ("40P01", "Verklemmung (Deadlock) entdeckt", FailureClass.COLLISION),
    ],
)
def test_what_the_server_says_is_not_read(state: str, told: str, expected: FailureClass) -> None:
    """Case 75: a server answers in its own language; the code of its answer decides, a duplicate is no outage."""
    error = asyncpg.PostgresError.new({"S": "FEHLER", "V": "ERROR", "C": state, "M": told})

    assert classify(error) is expected


@pytest.mark.parametrize("error", [Rejected("no"), asyncpg.CharacterNotInRepertoireError("x")])
def test_what_fails_for_ever_is_poison(error: Exception) -> None:
    """Dead letter at the first attempt."""
    assert classify(error) is FailureClass.POISON


def test_argument_that_speaks_of_closing_is_no_outage() -> None:
    """The driver quotes an argument that does not fit; a quoted word must not make it a lost connection."""
    misfit = asyncpg.exceptions._base.DataError("invalid input for query argument $1: 'closed'")

    assert not is_transient(misfit)
