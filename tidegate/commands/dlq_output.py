"""What `tidegate dlq` prints of dead letters: tables, lines, and plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any, NamedTuple

from rich.markup import escape

from tidegate.app import App
from tidegate.commands.options import print_table, say
from tidegate.commands.readable import counted, printable, spelled
from tidegate.console.letters import (
    ItemDetails,
    LetterDetails,
    LetterGroup,
    LetterPage,
    LetterStats,
    ListedLetter,
    Payload,
)

_NOT_SHOWN = "not shown"


class Shown(NamedTuple):
    """A letter, and what is in it where somebody may see that."""

    letter: LetterDetails | ItemDetails
    payload: Payload | None


def print_page(page: LetterPage) -> None:
    """The letters go to standard output as a table, what to type next to standard error."""
    about = ["letter", "kind", "job", "record or item", "state", "reason", "error", "event type", "tenant"]
    print_table([*about, "times", "last failed"], [_cells(each) for each in page.letters], right=["times"])
    if page.letters:
        say("one of them whole: tidegate dlq show LETTER; in groups: tidegate dlq stats")
    else:
        say("no dead letters of that kind")
    if page.after is not None:
        say(f"there are more: the same command with --after {page.after}")


def _cells(each: ListedLetter) -> list[object]:
    texts = [
        str(each.id),
        each.kind,
        each.job,
        each.place,
        each.state,
        each.reason,
        each.error_class,
        each.event_type or "",
        each.tenant,
    ]
    return [*(escape(printable(text)) for text in texts), each.occurrences, _time(each.last_failed_at)]


def print_stats(stats: LetterStats) -> None:
    """The groups go to standard output as a table, the totals to standard error."""
    columns = ["job", "kind", "reason", "fingerprint", "letters", "first failed", "last failed", "sample", "error"]
    print_table(columns, [_group_cells(each) for each in stats.groups], right=["letters"])
    letters, groups = counted(stats.all_letters, "letter"), counted(stats.all_groups, "group")
    say(f"{letters} in {groups}, {len(stats.groups):,} of them shown")


def _group_cells(each: LetterGroup) -> list[object]:
    times = _time(each.first_failed_at), _time(each.last_failed_at)
    error = escape(printable(f"{each.error_class}: {each.error_message}"))
    return [escape(each.job), each.kind, each.reason, each.fingerprint, each.letters, *times, each.sample, error]


def say_what_is_not_shown(app: App, jobs: Sequence[str] | None, others: int) -> None:
    """An empty table must not look like good news: `others` wait for a decision, too, and a job may be misspelt."""
    if others:
        are = "1 more of that kind is" if others == 1 else f"{others:,} more of that kind are"
        say(f"{are} quarantined or being replayed: --status quarantined --status replaying")
    clocked = {job.code: job for job in (*app.clock_jobs, *app.upkeep_jobs)}
    known = sorted(job.code for job in (*app.jobs, *app.clock_jobs))
    for code in jobs or ():
        if (job := clocked.get(code)) is not None and job.partial_failure != "quarantine":
            say(f"job {code!r} makes no letters of items that fail: 'tidegate jobs items {code}' shows them")
        elif job is None and code not in known:
            say(f"service {app.service!r} has no job {code!r} today; its jobs: {', '.join(known)}")


def told(shown: Shown) -> Iterator[str]:
    """Lines about one letter."""
    letter = shown.letter
    for name, value in _facts(letter):
        if value not in ("", None):
            yield f"{name + ':':<15} {printable(str(value))}"
    yield "stack:"
    yield from (f"  {printable(line)}" for line in letter.stack.splitlines())
    if isinstance(letter, LetterDetails):
        yield from _told_payload(shown.payload) if shown.payload is not None else _told_masked(letter)
    yield f"next:           {letter.next_command}"


def _facts(letter: LetterDetails | ItemDetails) -> Iterator[tuple[str, object]]:
    yield "letter", letter.id
    yield "job", letter.job
    yield from _facts_of_record(letter) if isinstance(letter, LetterDetails) else _facts_of_item(letter)
    yield "state", letter.state
    yield "reason", letter.reason
    yield "error", f"{letter.error_class}: {letter.error_message}"
    yield "fingerprint", letter.fingerprint
    yield "handler", letter.handler
    yield "attempts", letter.attempts
    yield "occurrences", letter.occurrences
    yield "first failed", _time(letter.first_failed_at)
    yield "last failed", _time(letter.last_failed_at)
    yield "replays", letter.replay_count
    yield "tenant", letter.tenant
    yield "brand", letter.brand
    yield "correlation id", letter.correlation_id
    yield "erased", letter.erased_at and f"{_time(letter.erased_at)} by {letter.erased_by}, with {_erased(letter)}"


def _erased(letter: LetterDetails | ItemDetails) -> str:
    return "key, value and headers" if isinstance(letter, LetterDetails) else "its key, of which this is a digest"


def _facts_of_record(letter: LetterDetails) -> Iterator[tuple[str, object]]:
    yield "record", f"{letter.place} of topic id {letter.topic_id}"
    yield "recorded at", letter.recorded_at and _time(letter.recorded_at)
    yield "event", letter.event_id
    yield "event type", letter.event_type
    yield "traceparent", letter.traceparent
    yield "service version", letter.service_version
    yield "in a backfill", "yes" if letter.backfill else None
    yield "waiting", _waiting(letter)
    yield "corrected", _correction(letter)
    yield "claim", letter.claimed_id and f"{letter.claimed_id} of {letter.claimed_bucket}"


def _facts_of_item(letter: ItemDetails) -> Iterator[tuple[str, object]]:
    yield "item", letter.item
    yield "run", letter.run
    yield "scheduled at", letter.scheduled_at and _time(letter.scheduled_at)
    yield "replay by run", letter.replay


def _waiting(letter: LetterDetails) -> str | None:
    if not letter.waiting:
        return None
    verb = "waits" if letter.waiting == 1 else "wait"
    return f"{counted(letter.waiting, 'event')} of its key {verb} behind it"


def _correction(letter: LetterDetails) -> str | None:
    if letter.corrected is None or letter.corrected_at is None:
        return None
    what = "discarded" if letter.corrected_bytes is None else f"edited to {letter.corrected_bytes} bytes"
    told = f"{what} by {letter.corrected_by} at {_time(letter.corrected_at)}: {letter.correction_reason}"
    return told if letter.corrected_sha256 is None else f"{told}; sha256 {letter.corrected_sha256}"


def _told_masked(letter: LetterDetails) -> Iterator[str]:
    if letter.erased_at is not None:
        return
    yield f"key:            {_size(letter.key_bytes)}"
    digest = "" if letter.value_sha256 is None else f", sha256 {letter.value_sha256}"
    yield f"value:          {_size(letter.value_bytes)}{digest}"
    yield "headers:"
    yield from (f"  {_name(name)}: {_NOT_SHOWN}" for name in letter.header_names)


def _told_payload(payload: Payload) -> Iterator[str]:
    yield f"key:            {_content(payload.key)}"
    yield f"value:          {_content(payload.value)}"
    if payload.corrected is not None:
        yield f"edited value:   {_content(payload.corrected)}"
    yield "headers:"
    yield from (f"  {_name(name)}: {_content(value)}" for name, value in payload.headers)


def _size(size: int | None) -> str:
    return "none" if size is None else f"{size} bytes, {_NOT_SHOWN}; --payload shows it"


def _name(name: bytes) -> str:
    return printable(name.decode("utf-8", "backslashreplace"))


def _content(content: bytes | None) -> str:
    if content is None:
        return "none"
    encoding, text = spelled(content)
    return printable(text, keep="\n\t") if encoding == "utf-8" else f"(base64) {text}"


def _time(at: datetime) -> str:
    return f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%SZ}"


def plain(letter: ListedLetter) -> dict[str, Any]:
    """A letter for JSON, with what to type next."""
    return {**asdict(letter), "next": letter.next_command}


def plain_details(shown: Shown) -> dict[str, Any]:
    """All about one letter for JSON; every content says whether it is text or base64."""
    if isinstance(shown.letter, ItemDetails):
        return plain(shown.letter)
    names = [_name(name) for name in shown.letter.header_names]
    told = {**plain(shown.letter), "header_names": names}
    if shown.payload is None:
        return told
    key, value, headers, corrected = shown.payload
    pairs = [{"name": _plain_content(name), "value": _plain_content(each)} for name, each in headers]
    contents = {"key": key, "value": value, "edited_value": corrected}
    return {**told, "payload": {name: _plain_content(each) for name, each in contents.items()} | {"headers": pairs}}


def _plain_content(content: bytes | None) -> dict[str, str] | None:
    return None if content is None else spelled(content)._asdict()
