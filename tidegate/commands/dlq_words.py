"""What is typed to choose dead letters for a run, and to say what becomes of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from tidegate.commands.dlq_filters import key_of, span_of, states_of
from tidegate.console.letters import LetterFilter
from tidegate_kernel.errors import Misconfigured, Reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """Which letters, as they were typed. The names are those of the options."""

    letters: Sequence[str] = ()
    job: str | None = None
    failed_for: Reason | None = None
    fingerprint: str | None = None
    type: str | None = None
    tenant: str | None = None
    brand: str | None = None
    since: str | None = None
    until: str | None = None
    status: Sequence[str] = ()
    error: str | None = None
    key: str | None = None

    def given(self) -> Mapping[str, object]:
        """Only what was typed, by option."""
        told = {each.name.replace("_", "-"): getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in told.items() if value not in (None, (), [])}

    def for_audit(self) -> Mapping[str, object]:
        """The same without the key, which is payload. So many letters that they would not fit are counted anyway."""
        return {name: "not kept" if name == "key" else value for name, value in self.given().items()}

    def spelled(self) -> Iterator[str]:
        for name, value in self.given().items():
            option = "--letter" if name == "letters" else f"--{name}"
            for each in value if isinstance(value, list | tuple) else (value,):
                yield from (option, str(each))

    def filter(self) -> LetterFilter:
        """Raises Misconfigured for a state or a moment that is none."""
        since, until = span_of(self.since, self.until)
        return LetterFilter(
            states=states_of(self.status),
            reason=self.failed_for,
            fingerprint=self.fingerprint,
            event_type=self.type,
            tenant=self.tenant,
            brand=self.brand,
            since=since,
            until=until,
            error=self.error,
            key=key_of(self.key),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class How:
    """How it is asked for, and shown. `resume`: the run of which the rest is to be done."""

    reason: str = ""
    is_sure: bool = False
    is_forced: bool = False
    digest: str | None = None
    rate: int | None = None
    resume: int | None = None
    from_topic: bool = False
    is_rehearsal: bool = False
    as_json: bool = False

    @property
    def said_reason(self) -> str:
        """The reason, if one was typed: the instruction in a letter has '…' where it goes."""
        return "" if self.reason.strip() in ("", "…", "...") else self.reason


def refuse_contradictions(words: Words, how: How) -> None:
    """Raises Misconfigured for words of which it is unclear what was meant."""
    given = set(words.given())
    if how.is_rehearsal and (how.is_sure or how.rate or how.resume is not None or how.from_topic):
        raise Misconfigured("--rehearse changes nothing: without --yes, --rate, --resume and --from-topic")
    if how.resume is not None:
        if given or how.digest or how.is_forced or how.from_topic:
            raise Misconfigured("--resume takes a run as it is: no letters, filters, --digest, --force or --from-topic")
        return
    if how.from_topic and not words.job:
        raise Misconfigured("--from-topic needs --job: each job has a DLQ topic of its own")
    if not given:
        raise Misconfigured("say which letters: --letter ID, or --job JOB with or without filters")
    if words.letters and given - {"letters", "job"}:
        raise Misconfigured("--letter names letters; filters choose among others: give one or the other")


def refuse_what_items_have_not(job: str, words: Words, how: How) -> None:
    """Raises Misconfigured for words that say nothing about items of a job by the clock."""
    said = {"--type": words.type, "--rate": how.rate, "--from-topic": how.from_topic, "--rehearse": how.is_rehearsal}
    for option, value in said.items():
        if value:
            raise Misconfigured(
                f"{option} is about records, and the letters of job {job!r} are items: a worker asks the job's query "
                "for them and does them again, at its own pace; leave it out"
            )
