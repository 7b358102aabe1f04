"""What a handler of `fetch` answers with, and how it says what the provider said."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from tidegate_kernel.errors import Rejected, RetryLater, TidegateError, Transient

LONGEST_ETAG = 1000
"""Characters of an etag that is believed: it is kept, and sent with each call."""

# Of what RFC 9110 allows, the printable part: bytes beyond ASCII come as halves of characters, which no database takes.
_ETAG = re.compile(r'(W/)?"[\x21\x23-\x7e]*"')


@dataclass(frozen=True, slots=True, kw_only=True)
class Pulled:
    """A page of a provider's answer. `items`: in the provider's order, by which changed ones come last.

    `next_page`: what the provider calls the page behind it; None: this was the last. `as_of`: the provider's own time
    of the answer, so that a clock that is behind ours loses nothing. `etag`: what it calls this answer. `is_unchanged`:
    it said that nothing has changed since the answer whose etag it was told.
    """

    items: Sequence[Any] = ()
    next_page: str | None = None
    as_of: datetime | None = None
    etag: str | None = None
    is_unchanged: bool = False

    @property
    def usable_etag(self) -> str | None:
        """The etag, where it can be kept and sent back."""
        etag = self.etag or ""
        return etag if len(etag) <= LONGEST_ETAG and _ETAG.fullmatch(etag) else None


class Throttled(RetryLater):
    """The provider wants to be left alone for `after` seconds, whoever asks; None: it did not say how long."""

    def __init__(self, message: str, *, after: float | None = None) -> None:
        super().__init__(message, after=after or 0.0)
        self.said = after


class ProviderAway(Transient):
    """The provider did not answer, or answered with an error of its own."""


class AccessRefused(Rejected):
    """The provider takes our credential for none, or not for this."""


class PageGone(TidegateError):
    """The provider does not know the page any more: the question has to be asked from its beginning."""
