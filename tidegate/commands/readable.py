"""Bytes and texts that came from records, made fit for a terminal and for JSON."""

from __future__ import annotations

import unicodedata
from base64 import b64encode
from typing import NamedTuple


class Spelled(NamedTuple):
    """Bytes as text: as they are where they are UTF-8, else in base64, and which of the two."""

    encoding: str
    text: str


def counted(number: int, what: str) -> str:
    """A number with its noun."""
    return f"{number:,} {what}" if number == 1 else f"{number:,} {what}s"


def spelled(content: bytes) -> Spelled:
    """Returns `content` so that it can be had back from the text, byte for byte."""
    try:
        return Spelled("utf-8", content.decode())
    except UnicodeDecodeError:
        return Spelled("base64", b64encode(content).decode())


def printable(text: str, *, keep: str = "") -> str:
    """`text` with control characters spelled out, those in `keep` excepted: a record must not command the terminal."""
    return "".join(one if one in keep or unicodedata.category(one)[0] != "C" else _escaped(one) for one in text)


def _escaped(one: str) -> str:
    return one.encode("unicode_escape").decode()
