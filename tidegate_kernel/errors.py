"""One tree of errors, grouped by what the caller does next."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum


class Reason(StrEnum):
    """Why a record became a dead letter. A closed set: it labels metrics and the `tg-dlq-reason` header."""

    UNDECODABLE = "undecodable"
    INVALID_ENVELOPE = "invalid_envelope"
    INVALID_EVENT = "invalid_event"
    INVALID_NUMBER = "invalid_number"
    INVALID_TEXT = "invalid_text"
    UNKNOWN_TYPE = "unknown_type"
    UNKNOWN_VERSION = "unknown_version"
    NO_VALUE = "no_value"
    NO_VERSION = "no_version"
    REJECTED = "rejected"
    PROJECTION_FAILED = "projection_failed"
    INVALID_DOCUMENT = "invalid_document"
    TOO_LARGE = "too_large"
    HANDLER_FAILED = "handler_failed"
    RETRIES_EXHAUSTED = "retries_exhausted"
    WORKER_CRASHED = "worker_crashed"
    CLIENT_PARSE = "client_parse"


class TidegateError(Exception):
    """Anything that Tidegate raises on purpose."""


class Transient(TidegateError):
    """The same call may succeed later: roll back, wait, try again."""


class RetryLater(Transient):
    """A handler asks to be called again, not before `after` seconds."""

    def __init__(self, message: str = "the handler asked for a retry", *, after: float = 1.0) -> None:
        super().__init__(message)
        self.after = after


class Poison(TidegateError):
    """This record can never succeed as it is: dead letter at once, no retry.

    `reason` is the closed-set reason of the dead letter; the message never holds payload.
    """

    reason: Reason = Reason.UNDECODABLE

    def __init__(self, message: str, *, reason: Reason | None = None) -> None:
        super().__init__(message)
        if reason is not None:
            self.reason = reason


class Undecodable(Poison):
    """The bytes are not what the topic's envelope and format say."""

    reason = Reason.UNDECODABLE


class UnknownType(Poison):
    """No route of the job takes this event type or version."""

    reason = Reason.UNKNOWN_TYPE


class InvalidEvent(Poison):
    """The bytes decode, but not to the event model."""

    reason = Reason.INVALID_EVENT


class InvalidDocument(Poison):
    """A projection's write that its sink can never take; the message names the field or column."""

    reason = Reason.INVALID_DOCUMENT


class Rejected(Poison):
    """A business no, raised by a handler."""

    reason = Reason.REJECTED


class Conflict(TidegateError):
    """Another owner has the right of way: drop the work, it is theirs."""


class StaleOwner(Conflict):
    """The position moved or belongs to a newer epoch."""


class LeaseLost(Conflict):
    """The lease expired or was taken by another holder."""


class AlreadyRunning(Conflict):
    """The same work is under way elsewhere."""


class Denied(TidegateError):
    """The caller lacks a permission."""


class Misconfigured(TidegateError):
    """A setting, declaration or server is not as it must be; the message names the thing and the remedy."""


class NeedsRebuild(Misconfigured):
    """An index or table differs from its declaration in what cannot be changed in place: it has to be filled anew.

    `thing` names it with its kind, each of `differences` what is there and what is declared.
    """

    def __init__(self, thing: str, differences: Sequence[str]) -> None:
        super().__init__(
            f"{thing} needs rebuild: {'; '.join(differences)}. 'tidegate projections reset JOB' makes it anew and "
            "fills it from its topics; nothing has been changed"
        )
        self.thing, self.differences = thing, tuple(differences)


class Unreachable(Misconfigured):
    """A server does not answer. At a first start its address may be wrong; one that has answered before is away."""
