"""What a document is written from: a job in its App, a language, and what was found about the job in its repository."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from tidegate.app import App
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.clockwork.maintenance_job import MaintenanceJob
from tidegate.jobs.clockwork.provider.declaration import ProviderSyncJob
from tidegate.jobs.declaration import ConsumerJob, FoldJob, Job
from tidegate.jobs.docs.coverage import Covering, Rule
from tidegate.jobs.docs.english import ENGLISH
from tidegate.jobs.docs.russian import RUSSIAN
from tidegate.jobs.text import Language, Words, in_language

WORDS: Mapping[Language, Mapping[str, str]] = {Language.EN: ENGLISH, Language.RU: RUSSIAN}

_UNITS = (("days", 86_400), ("hours", 3_600), ("minutes", 60), ("seconds", 1))


@dataclass(frozen=True, slots=True)
class Evidence:
    """What the repository holds about a job; links are relative to the document, or addresses.

    `runbook` None: the declaration names a file that is not there.
    """

    runbook: str | None = None
    tests: Mapping[Rule, Sequence[Covering]] = field(default_factory=dict)
    references: Sequence[tuple[str, str]] = ()
    """Name and link of each document."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """One document to be written."""

    app: App
    job: Job | ClockJob
    language: Language
    evidence: Evidence = field(default_factory=Evidence)

    def say(self, key: str, /, **facts: Any) -> str:
        """The sentence of that key in the document's language, with the facts in it."""
        return self.words(self.language, key, **facts)

    @staticmethod
    def words(language: Language, key: str, /, **facts: Any) -> str:
        """The sentence of that key in a language, with the facts in it."""
        return WORDS[language][key].format(**facts)

    def point(self, label: str, key: str, /, **facts: Any) -> str:
        """A line of a list: a label, and the sentence of that key."""
        return f"- **{self.say(f'label.{label}')}**: {self.say(key, **facts)}"

    def told(self, words: Words) -> str:
        """What the declaration says, in the document's language, as one line."""
        return " ".join(in_language(words, self.language).split())

    def span(self, duration: timedelta) -> str:
        """A duration in words, as `1 h 30 min`; zero as `0 s`."""
        if duration == timedelta.max:
            return self.say("span.for_ever")
        parts, left = [], duration.total_seconds()
        for unit, seconds in _UNITS:
            count = left / seconds if unit == "seconds" else left // seconds
            left -= count * seconds
            if count:
                parts.append(f"{count:g} {self.say(f'span.{unit}')}")
        return " ".join(parts) or f"0 {self.say('span.seconds')}"


def kind_of(job: Job | ClockJob) -> str:
    """The word of its kind that keys of sentences have."""
    match job:
        case ConsumerJob():
            return "consumer"
        case FoldJob():
            return "fold"
        case MaintenanceJob():
            return "maintenance"
        case ProviderSyncJob():
            return "provider"
        case ClockJob():
            return "scheduled"
        case _:
            return "projection"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """A table as lines of Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


def code(text: object) -> str:
    """Text as Markdown shows names."""
    return f"`{text}`"


def codes(texts: Sequence[object]) -> str:
    """Several names, each once, in their order."""
    return ", ".join(code(text) for text in dict.fromkeys(map(str, texts)))
