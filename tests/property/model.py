"""What must be true after any schedule, worked out from what was produced and from what runs over letters decided.

Each check names the guarantee that it stands for (docs/guarantees.md).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

from dlq.runs import Outcome
from dlq.states import LetterState
from tests.property.application import DEATHS, RETRY, document_id
from tests.property.evidence import Evidence, Letter, Move, Place
from tests.property.produced import ProducedRecord
from tests.property.recovery import Recovery
from tests.property.schedule import Kind, Mood
from tests.property.world import World
from tidegate_kernel.errors import Reason
from tidegate_kernel.event import TopicPartition

_FAILED = frozenset({Reason.HANDLER_FAILED, Reason.RETRIES_EXHAUSTED})
_NEVER_AN_EVENT: Mapping[Mood, Reason] = {
    Mood.UNDECODABLE: Reason.UNDECODABLE,
    Mood.INVALID: Reason.INVALID_EVENT,
    Mood.UNREADABLE: Reason.CLIENT_PARSE,
}
_BAD_COMMANDS: Mapping[Mood, frozenset[Reason]] = {
    Mood.REJECTED: frozenset({Reason.REJECTED}),
    Mood.ALWAYS_UNEXPECTED: _FAILED,
    Mood.ALWAYS_TRANSIENT: _FAILED,
    Mood.NUL_TEXT: frozenset({Reason.INVALID_TEXT}),
}
_BAD_PROJECTIONS: Mapping[Mood, frozenset[Reason]] = {
    Mood.REJECTED: frozenset({Reason.REJECTED}),
    Mood.ALWAYS_UNEXPECTED: frozenset({Reason.PROJECTION_FAILED}),
    Mood.ALWAYS_TRANSIENT: frozenset({Reason.INVALID_DOCUMENT}),
}
_BAD_FOLDS: Mapping[Mood, frozenset[Reason]] = {
    Mood.REJECTED: frozenset({Reason.REJECTED}),
    Mood.ALWAYS_UNEXPECTED: frozenset({Reason.PROJECTION_FAILED}),
    Mood.ALWAYS_TRANSIENT: frozenset({Reason.PROJECTION_FAILED}),
}
_PASSED_OVER = frozenset({Mood.UNLISTED, Mood.TOMBSTONE})


class Expectations:
    """The guarantees, against one world's evidence. Each method asserts one."""

    def __init__(self, world: World, evidence: Evidence) -> None:
        self._world, self._found = world, evidence
        self._is_projection = world.kind is Kind.PROJECTION
        self._is_fold = world.kind is Kind.FOLD
        self._bad = {Kind.PROJECTION: _BAD_PROJECTIONS, Kind.FOLD: _BAD_FOLDS}.get(world.kind, _BAD_COMMANDS)
        self._records = world.produced.records
        self._by_place = {record.place: record for record in self._records}
        self._letters: dict[Place, Letter] = {letter.place: letter for letter in evidence.letters}
        self._recovery = Recovery(evidence, world.replays)
        self._acted = {effect.place for effect in evidence.effects}
        self._places: dict[str, list[Place]] = defaultdict(list)
        self._crashed = {letter.place for letter in evidence.letters if letter.reason == Reason.WORKER_CRASHED}
        for record in self._records:
            if self._is_event(record):
                self._places[record.event].append(record.place)

    def check(self) -> None:
        self._recovery.check(self._found.letters)
        self._check_settled()
        self._check_records_without_event()
        self._check_once()
        self._check_letters_are_whole()
        self._check_claims_and_outbox()
        self._check_order_per_key()
        self._check_documents()
        self._check_owners()

    def check_made_good(self) -> None:
        """G8: once everything was replayed by a mended job, every event has acted or was discarded, and none waits."""
        assert not self._found.parked, f"G8: these still wait: {list(self._found.parked)}"
        for letter in self._found.letters:
            has_nothing = self._by_place[letter.place].spec.mood is Mood.UNREADABLE
            assert has_nothing or not self._recovery.blocks(letter), f"G8: {letter} could be replayed"
        if self._is_projection:
            return
        effects = Counter(effect.event for effect in self._found.effects)
        for record in self._records:
            if record.spec.mood not in _PASSED_OVER and record.spec.mood is not Mood.UNREADABLE:
                is_done = effects[record.event] == 1 or self._is_discarded(record.event)
                assert is_done, f"G8: {record.event} ({record.spec.mood}) acted {effects[record.event]} times"

    def _is_discarded(self, event: str) -> bool:
        letters = (self._letters.get(record.place) for record in self._records if record.event == event)
        return any(letter is not None and letter.state is LetterState.DISCARDED for letter in letters)

    def _is_event(self, record: ProducedRecord) -> bool:
        """Whether it was decoded, and so has a claim. A record that ended its process too often was not, until a
        backfill reads it (it waits behind its own letter) or a run takes it up."""
        mood, place, letter = record.spec.mood, record.place, self._letters.get(record.place)
        if mood in _PASSED_OVER:
            return False
        if mood not in _NEVER_AN_EVENT and place not in self._crashed:
            return True
        if place in self._found.parked or place in self._acted:
            return True
        return letter is not None and (letter.has_claim or self._recovery.has_acted(letter))

    def _check_settled(self) -> None:
        """G1: nothing is left behind."""
        assert self._world.told_too_much == [], "G1: the group was told of offsets that were not settled"
        for record in self._records:
            topic, partition, offset = record.place
            settled = self._found.positions.get(TopicPartition(topic, partition), 0)
            assert offset < settled, f"G1: {record.place} lies behind the position {settled}"

    def _check_records_without_event(self) -> None:
        """G1, G6: what is no event is a dead letter of its own, or passed over, wherever it stands."""
        assert not self._crashed or self._world.deaths > DEATHS, (
            f"G5: {self._crashed} after {self._world.deaths} deaths"
        )
        unknown = self._letters.keys() - self._by_place.keys()
        assert not unknown, f"G1: letters of records that nobody wrote: {unknown}"
        for record in self._records:
            mood, letter = record.spec.mood, self._letters.get(record.place)
            if record.place in self._crashed:
                continue
            if mood in _NEVER_AN_EVENT:
                assert letter is not None, f"G1: {record} is neither handled nor kept"
                # A mended job that decoded it may have failed at it later.
                assert letter.has_claim or letter.reason == _NEVER_AN_EVENT[mood], (
                    f"{record} became a letter for {letter.reason}"
                )
            elif mood in _PASSED_OVER:
                assert letter is None, f"G6: {record} is nothing to handle, and a letter for {letter}"

    def _check_once(self) -> None:
        """G1, G2, G5, G6: an event has exactly one outcome, and only a really bad one is a dead letter. One that is
        parked has not been judged yet."""
        effects = Counter(effect.event for effect in self._found.effects)
        for event, places in self._places.items():
            parked = [place for place in places if place in self._found.parked]
            # Only what a backfill reads again may wait behind the letter of its own record.
            judged = [place for place in places if place not in parked or place not in self._crashed]
            letters = [self._letters[place] for place in judged if place in self._letters]
            self._check_letters_of(event, letters)
            assert effects[event] <= 1, f"G2: {event} acted {effects[event]} times"
            if self._is_projection:
                self._check_bad_projection(event, letters)
                continue
            undone = [each for each in letters if self._recovery.stands(each) or each.state is LetterState.DISCARDED]
            assert effects[event] + len(undone) + len(parked) == 1, (
                f"G1, G2, G8: {event} of {places} has {effects[event]} effects, letters {undone}; waits: {parked}"
            )
            self._check_recovered(letters)

    def _check_bad_projection(self, event: str, letters: Sequence[Letter]) -> None:
        mood = self._world.produced.events[event].mood
        # A backfill runs newer code over what was claimed long ago: what fails there again is a letter where it stood.
        at_most = len(self._places[event]) if self._world.backfills or mood in _NEVER_AN_EVENT else 1
        at_least = 1 if mood in self._bad else 0
        assert at_least <= len(letters) <= at_most, f"G1, G2: {event} ({mood}) has {len(letters)} letters"

    def _check_recovered(self, letters: Sequence[Letter]) -> None:
        """G8: what was resolved has acted, what was discarded has not, and nothing else has."""
        for letter in letters:
            is_resolved = self._recovery.came_to(letter, Outcome.RESOLVED)
            # What a backfill parked behind the letter of its own record acts in its stead.
            acts_elsewhere = self._recovery.came_to(letter, Outcome.ALREADY_PROCESSED)
            has_acted = letter.place in self._acted
            assert has_acted == is_resolved or acts_elsewhere, f"G8: {letter} has acted: {has_acted}"

    def _check_letters_of(self, event: str, letters: Sequence[Letter]) -> None:
        mood = self._world.produced.events[event].mood
        is_mended = bool(self._world.replays.mended)
        has_acted = any(place in self._acted for place in self._places[event])
        if mood in self._bad or mood in _NEVER_AN_EVENT:
            assert is_mended or not has_acted, f"{event} ({mood}) has acted, and no job that can handle it was there"
        allowed = set(self._bad.get(mood, ())) | {Reason.WORKER_CRASHED}
        if mood in _NEVER_AN_EVENT:
            allowed.add(_NEVER_AN_EVENT[mood])
        if self._world.blames[event] >= min(RETRY.attempts, RETRY.unexpected_attempts):
            allowed |= _FAILED
        for letter in letters:
            assert letter.reason in allowed, (
                f"G5, G6: {event} ({mood}) is a letter for {letter.reason}; its handlers failed "
                f"{self._world.blames[event]} times"
            )

    def _check_letters_are_whole(self) -> None:
        """G7: key, value and headers as they were written."""
        for place, letter in self._letters.items():
            record = self._by_place[place].record
            if letter.reason is not Reason.CLIENT_PARSE:
                assert letter.content == (record.key, record.value, list(record.headers)), f"G7: {place}"
        for place, content in self._found.parked.items():
            record = self._by_place[place].record
            assert content == (record.key, record.value, list(record.headers)), f"G7: {place}, parked"

    def _check_claims_and_outbox(self) -> None:
        """G2: one claim per event, one publication per effect, one copy of a letter per failure of its record."""
        found = self._found
        assert found.claims == len(self._places), f"{found.claims} claims for {len(self._places)} events"
        published = [] if self._is_fold else sorted(effect.event for effect in found.effects)
        assert sorted(found.published) == published, "G2: publications"
        assert found.letters_published == sum(letter.occurrences for letter in found.letters), "G7: copies of letters"

    def _check_order_per_key(self) -> None:
        """G4: what took effect of a key in a partition did so in the order of its offsets."""
        assert all(effect.place in self._places[effect.event] for effect in self._found.effects)
        order: dict[tuple[str, int, bytes | None], list[int]] = defaultdict(list)
        for effect in self._found.effects:
            topic, partition, offset = effect.place
            order[topic, partition, self._by_place[effect.place].key].append(offset)
        for key, offsets in order.items():
            assert offsets == sorted(offsets), f"G4: {key} took effect in the order {offsets}"
        self._check_order_past_a_failure({key: offsets[-1] for key, offsets in order.items()})

    def _check_order_past_a_failure(self, last: Mapping[tuple[str, int, bytes | None], int]) -> None:
        """G4: nothing of a key passes its dead letter, and nothing waits without one."""
        if self._is_projection:
            assert not self._found.parked, "G4: projections have no need to wait"
            return
        assert self._found.odd_keys == [], f"G4: {self._found.odd_keys}"
        dead = self._first_of_keys(letter for letter in self._found.letters if self._recovery.stands(letter))
        passed = {key: (dead[key], offset) for key, offset in last.items() if offset > dead.get(key, offset)}
        assert not passed, f"G4: of these keys something took effect behind their dead letters: {passed}"
        blocking = self._first_of_keys(letter for letter in self._found.letters if self._recovery.blocks(letter))
        for topic, partition, offset in self._found.parked:
            waits = (topic, partition, self._by_place[topic, partition, offset].key)
            assert blocking.get(waits, offset + 1) <= offset, f"G4: {waits} waits at {offset} for nothing"

    def _first_of_keys(self, letters: Iterable[Letter]) -> Mapping[tuple[str, int, bytes | None], int]:
        first: dict[tuple[str, int, bytes | None], int] = {}
        for letter in letters:
            topic, partition, offset = letter.place
            # Of a record that the client cannot hand over nobody may know the key.
            if letter.content[0] is not None:
                key = (topic, partition, letter.content[0])
                first[key] = min(offset, first.get(key, offset))
        return first

    def _check_documents(self) -> None:
        """G3: a document is the newest version of its key, or gone."""
        if self._is_fold:
            shown = {key: body["events"] for key, body in self._found.documents.items()}
            assert shown == self._found.folded, f"G3: readers see {shown}, folded was {self._found.folded}"
        if not self._is_projection:
            return
        newest: dict[str, tuple[int, str | None]] = {}
        for record in self._records:
            if (written := self._written(record)) is not None:
                document = document_id(record.key)
                newest[document] = max(newest.get(document, (-1, None)), written, key=lambda each: each[0])
        found = {document: body["event"] for document, body in self._found.documents.items()}
        for document in newest.keys() | found.keys():
            version, event = newest.get(document, (-1, None))
            allowed = {event, *self._perhaps_written(document, version)}
            assert found.get(document) in allowed, f"G3: {document} is {found.get(document)}, not of {allowed}"

    def _written(self, record: ProducedRecord) -> tuple[int, str | None] | None:
        if record.spec.mood is Mood.TOMBSTONE:
            return record.version, None
        letter = self._letters.get(record.place)
        is_good = record.spec.mood not in self._bad and record.spec.mood not in _NEVER_AN_EVENT
        if self._is_event(record) and (is_good or (letter is not None and self._recovery.has_acted(letter))):
            return record.version, record.event
        return None

    def _perhaps_written(self, document: str, version: int) -> Iterable[str]:
        """Events newer than `version` that a mended job may have written before its runner came to a sudden end."""
        for record in self._records:
            letter = self._letters.get(record.place)
            is_newer = document_id(record.key) == document and record.version > version
            if is_newer and letter is not None and self._recovery.was_tried_mended(letter):
                yield record.event

    def _check_owners(self) -> None:
        """G9: epochs grow with every owner, positions never go back."""
        for moves in _by_partition(self._found.moves):
            for before, after in pairwise(moves):
                where = f"G9: {before} was followed by {after}"
                assert after.next_offset >= before.next_offset, where
                assert after.epoch >= before.epoch, where
                assert after.owner in (None, before.owner) or after.epoch > before.epoch, where


def _by_partition(moves: Iterable[Move]) -> Iterable[list[Move]]:
    found: dict[tuple[int, TopicPartition], list[Move]] = defaultdict(list)
    for move in moves:
        found[move.run, move.partition].append(move)
    return found.values()
