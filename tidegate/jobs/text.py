"""Words of a declaration that people read, in the two languages that documents of jobs are written in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from tidegate_kernel.errors import Misconfigured


class Language(StrEnum):
    """What documents can be written in."""

    EN = "en"
    RU = "ru"


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """The same said in both languages. Raises Misconfigured where one of them is empty."""

    en: str
    ru: str

    def __post_init__(self) -> None:
        for language in Language:
            if not getattr(self, language).strip():
                raise Misconfigured(f"Text({self.en!r}, {self.ru!r}): {language} is empty")

    def __str__(self) -> str:
        return self.en


Words: TypeAlias = str | Text
"""A plain text stands in documents of either language as it is."""


def in_language(words: Words, language: Language) -> str:
    """Returns the words as a reader of `language` gets them."""
    if isinstance(words, str):
        return words
    return words.en if language is Language.EN else words.ru
