"""The words by which commands choose dead letters, and what they mean."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Annotated
from uuid import UUID

import typer

from dlq.states import LetterState
from tidegate.commands.moments import moment
from tidegate_kernel.errors import Misconfigured

Fingerprint = Annotated[str | None, typer.Option(help="Of this group, as 'dlq stats' shows it.")]
TypeName = Annotated[str | None, typer.Option("--type", metavar="TYPE", help="Of this event type.")]
Tenant = Annotated[str | None, typer.Option(help="Of this tenant; '' for none.")]
Brand = Annotated[str | None, typer.Option(help="Of this brand; '' for none.")]
Since = Annotated[str | None, typer.Option(metavar="24h|ISO", help="Whose last failure is not older than this.")]
Until = Annotated[str | None, typer.Option(metavar="24h|ISO", help="Whose last failure is older than this.")]
Status = Annotated[
    list[str] | None,
    typer.Option(metavar="STATE|any", help="dead (the default), any, or another state; may be repeated."),
]
ErrorText = Annotated[
    str | None, typer.Option("--error", metavar="TEXT", help="With this in the error's class or message.")
]
Key = Annotated[str | None, typer.Option(help="Of this record key.")]


def letter_id(text: str) -> UUID:
    """Raises Misconfigured for what is no id of a letter."""
    try:
        return UUID(text)
    except ValueError:
        raise Misconfigured(f"{text!r} is no letter's id; 'tidegate dlq list' shows them") from None


def states_of(given: Sequence[str] | None) -> Sequence[LetterState]:
    """Raises Misconfigured for what is no state."""
    if not given:
        return [LetterState.DEAD]
    if "any" in given:
        return list(LetterState)
    unknown = [each for each in given if each not in list(LetterState)]
    if unknown:
        raise Misconfigured(f"--status {unknown[0]!r} is none of: any, {', '.join(LetterState)}")
    return [LetterState(each) for each in dict.fromkeys(given)]


def moment_of(option: str, text: str | None) -> datetime | None:
    """Raises Misconfigured for what is no moment."""
    return None if text is None else moment(option, text)


def span_of(since: str | None, until: str | None) -> tuple[datetime | None, datetime | None]:
    """Raises Misconfigured for what is no moment, and where nothing can lie between the two."""
    start, end = moment_of("--since", since), moment_of("--until", until)
    if start is not None and end is not None and start >= end:
        raise Misconfigured(f"--since {since!r} is not before --until {until!r}: nothing lies between them")
    return start, end


def key_of(text: str | None) -> bytes | None:
    """The bytes that were typed."""
    # Arguments that are no UTF-8 arrive with surrogates for their bytes.
    return None if text is None else text.encode("utf-8", "surrogateescape")
