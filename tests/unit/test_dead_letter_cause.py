"""What is stored about an error: its root, its place, and nobody's data."""

from __future__ import annotations

import re
from uuid import UUID

import pytest

from dlq.cause import MAX_STACK, Cause, cause_of
from tidegate_kernel.errors import InvalidEvent, Poison, Reason, Rejected, Undecodable

SECRET = "jane@example.org"


class HandlerError(Exception):
    """An application's own wrapper."""


class Unprintable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no text")


def throw(error: Exception, *, cause: Exception | None = None) -> None:
    if cause is None:
        raise error
    try:
        throw(cause)
    except Exception as inner:
        raise error from inner


def caught(error: Exception, *, cause: Exception | None = None) -> Exception:
    with pytest.raises(type(error)) as info:
        throw(error, cause=cause)
    return info.value


def forget_from() -> None:
    try:
        throw(KeyError("root"))
    except KeyError:
        raise HandlerError("wrapped")  # noqa: B904  # the forgotten `from` is the point


def from_none() -> None:
    try:
        throw(KeyError("root"))
    except KeyError:
        raise HandlerError("own") from None


def cause(error: BaseException) -> Cause:
    return cause_of(error, Reason.HANDLER_FAILED)


def test_the_innermost_error_is_the_class_of_the_letter() -> None:
    """Case 52: the wrapper says nothing about what to repair."""
    wrapped = caught(HandlerError("wrapped"), cause=ValueError("root"))

    assert cause(wrapped).error_class == "ValueError"
    assert cause(wrapped).stack.startswith("ValueError\n  ")
    assert "HandlerError" in cause(wrapped).stack


def test_an_error_raised_while_handling_another_leads_to_the_first() -> None:
    """Case 52: most wrappers forget `from`."""
    with pytest.raises(HandlerError) as info:
        forget_from()

    assert cause(info.value).error_class == "KeyError"


def test_a_suppressed_context_is_not_the_cause() -> None:
    """`from None` says that the first error is not the reason."""
    with pytest.raises(HandlerError) as info:
        from_none()

    assert cause(info.value).error_class.endswith("HandlerError")


def test_a_group_leads_to_its_first_member() -> None:
    """A TaskGroup in a handler must not make every letter an ExceptionGroup."""
    assert cause(caught(ExceptionGroup("g", [caught(ValueError("v"))]))).error_class == "ValueError"


def test_a_ring_of_causes_ends() -> None:
    """Libraries re-raise stored exceptions; a ring must not hang the pipeline."""
    first, second = ValueError("a"), KeyError("b")
    first.__cause__, second.__cause__ = second, first

    assert cause(first).error_class == "KeyError"


def test_the_text_of_a_foreign_error_is_not_kept() -> None:
    """Case 52: messages of other people's errors quote the record."""
    told = cause(caught(HandlerError(SECRET), cause=ValueError(f"invalid literal {SECRET!r}")))

    assert SECRET not in f"{told.message}{told.stack}"
    assert re.fullmatch(r"ValueError at unit/test_dead_letter_cause\.py:\d+ throw", told.message)


def test_the_text_of_a_foreign_error_is_kept_where_the_job_asks_for_it() -> None:
    """A job without personal data may want the words."""
    told = cause_of(caught(ValueError("root")), Reason.HANDLER_FAILED, include_foreign_message=True)

    assert told.message == "root"


def test_the_text_of_our_own_error_is_kept() -> None:
    """Tidegate's messages name the field and never hold payload; a business no is the handler's own words."""
    assert cause(caught(Rejected("credit limit reached"))).message == "credit limit reached"
    wrapped = caught(Undecodable("not JSON at byte 0"), cause=ValueError(SECRET))
    assert cause(wrapped).message == "not JSON at byte 0"
    assert cause(wrapped).error_class == "ValueError"


def test_the_place_that_is_told_is_in_the_handlers_own_code() -> None:
    """`KeyError at <frozen os>:679 __getitem__` sends whoever has to mend the handler into the standard library."""
    with pytest.raises(ValueError, match="badly formed") as info:
        UUID("no id")
    told, elsewhere = (
        cause_of(info.value, Reason.HANDLER_FAILED, handler=name) for name in (f"{__name__}.handler", "else.handler")
    )

    assert re.fullmatch(r"ValueError at unit/test_dead_letter_cause\.py:\d+ test_the_place_\w+", told.message)
    assert re.search(r"ValueError at \S*uuid\.py:\d+ __init__", elsewhere.message)
    assert told.stack == elsewhere.stack


def test_an_error_that_cannot_be_printed_is_a_cause_like_any_other() -> None:
    """Nothing in an error may keep a letter from being written."""
    told = cause_of(caught(Unprintable()), Reason.HANDLER_FAILED, include_foreign_message=True)

    assert told.error_class.endswith("Unprintable")
    assert told.message


def test_the_fingerprint_is_of_the_place_and_not_of_the_words() -> None:
    """One defect is one group in the list, whatever record it met."""
    one, other = cause(caught(ValueError("a"))), cause(caught(ValueError("b")))

    assert one.fingerprint == other.fingerprint
    assert re.fullmatch("[0-9a-f]{16}", one.fingerprint)
    assert cause_of(caught(ValueError("a")), Reason.RETRIES_EXHAUSTED).fingerprint != one.fingerprint
    assert cause(caught(KeyError("a"))).fingerprint != one.fingerprint


def test_numbers_and_ids_in_words_do_not_split_a_group() -> None:
    """A refusal that names the order is one kind of refusal, not as many as there are orders."""
    told = [
        cause(caught(Rejected(f"order {name} is above the limit")))
        for name in ("17", "o-4111", "01890a5d-ac96-774b-bcce-b302099a8057", "12.50")
    ]

    assert len({each.fingerprint for each in told}) == 1
    assert cause(caught(Rejected("order 17 is unknown"))).fingerprint != told[0].fingerprint


def test_fields_of_an_event_are_groups_of_their_own() -> None:
    """All models are checked at one place of ours: without the field's name every invalid event would be one group."""
    wrong = [cause(caught(InvalidEvent(f"field {name!r} is missing"), cause=TypeError())) for name in ("id", "total")]

    assert wrong[0].fingerprint != wrong[1].fingerprint


def test_different_handlers_are_different_groups() -> None:
    """Case 53: two jobs' handlers that fall over one library are two people's work."""
    error = caught(ValueError("a"))
    pay, ship = (cause_of(error, Reason.HANDLER_FAILED, handler=name) for name in ("pay", "ship"))

    assert pay.fingerprint != ship.fingerprint


def test_words_of_foreign_errors_do_not_count() -> None:
    """They quote the record: each would be a group of its own, and a stored digest of somebody's data."""
    one, other = (
        cause_of(caught(ValueError(word)), Reason.HANDLER_FAILED, include_foreign_message=True) for word in ("a", "b")
    )

    assert one.fingerprint == other.fingerprint


def test_endless_recursion_leaves_a_bounded_stack() -> None:
    """A RecursionError has a thousand frames; the innermost are the ones that tell."""

    def deeper(n: int) -> None:
        if n == 0:
            raise Poison("x" * 5000)
        deeper(n - 1)

    with pytest.raises(Poison) as info:
        deeper(500)
    told = cause(info.value)

    assert len(told.stack) == MAX_STACK
    assert len(told.message) == 1000
