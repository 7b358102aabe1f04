"""What a run asks its provider, and where in the answer it is: held by the checkpoint until the run has ended well."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime
from typing import Self

import msgspec

from tidegate_kernel.errors import Rejected

LONGEST_PAGE = 4000
"""Characters of what a provider calls a page: more than any address can hold."""


class _Spelled(msgspec.Struct, frozen=True, omit_defaults=True):
    based_on: int
    asked_at: datetime
    began_at: datetime
    since: datetime | None = None
    page: str | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """For all that has changed `since`; None: everything. `page`: where in the answer a run is.

    It was first asked at `asked_at` by our clock, at `began_at` by the earlier of ours and the provider's. `based_on`
    is the run whose success it begins behind: once another has succeeded, the question is over. `etag`: of the answer
    to it the last time.
    """

    based_on: int
    asked_at: datetime
    began_at: datetime
    since: datetime | None
    page: str | None = None
    etag: str | None = None

    def at(self, page: str | None) -> Self:
        """The same question, at another page of its answer. Raises Rejected for the one it is at, or a long name."""
        if page is not None and len(page) > LONGEST_PAGE:
            raise Rejected(f"the provider's name of a page is longer than {LONGEST_PAGE} characters")
        if page is not None and page == self.page:
            raise Rejected("the provider answers with the page that it was asked for as the next one")
        return replace(self, page=page)

    def anew(self) -> Self:
        """The same question from its beginning."""
        return replace(self, page=None, etag=None)

    def based(self, run: int) -> Self:
        """The same question, behind the success of that run."""
        return replace(self, based_on=run)

    def not_later_than(self, provider_time: datetime | None) -> Self:
        """Asked at the earlier of both times: what changes meanwhile is stamped by the provider's clock."""
        return self if provider_time is None else replace(self, began_at=min(self.began_at, provider_time))

    def spelled(self) -> str:
        """As a checkpoint keeps it."""
        told = _Spelled(self.based_on, self.asked_at, self.began_at, self.since, self.page)
        return msgspec.json.encode(told).decode()

    @classmethod
    def read(cls, text: str | None) -> Self | None:
        """Returns what `spelled` wrote; None where there is nothing, or something of an earlier release."""
        try:
            told = msgspec.json.decode(text or "", type=_Spelled)
        except msgspec.DecodeError:
            return None
        return cls(told.based_on, told.asked_at, told.began_at, told.since, told.page)


class Way:
    """Through the pages of an answer, from where a question is: none of them twice, or it would never end."""

    def __init__(self, begun: Question) -> None:
        # Hashes: names may be as long as addresses, and an answer may have any number of pages.
        self._met = {hash(begun.page)}

    def behind(self, question: Question, page: str | None) -> Question | None:
        """The question at the page that is named as the next one; None: there is none. Raises Rejected."""
        if page is None:
            return None
        following = question.at(page)
        if hash(page) in self._met:
            raise Rejected("the provider names a page as the next one that it has already answered with")
        self._met.add(hash(page))
        return following
