"""What runs over dead letters made of them, as the model has to know it (G8)."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from uuid import UUID

from dlq.runs import Outcome
from dlq.states import UNRESOLVED, LetterState
from tests.property.evidence import Evidence, Letter, Verdict
from tests.property.replayer import MOST_REPLAYS, Replays

_ENDS = frozenset({Outcome.RESOLVED, Outcome.ALREADY_PROCESSED, Outcome.SUPERSEDED, Outcome.DISCARDED})
_UNTOLD = frozenset({Outcome.BEHIND, Outcome.NOT_TRIED})
_COUNTED = frozenset({Outcome.RESOLVED, Outcome.SUPERSEDED, Outcome.FAILED})


class Recovery:
    """The verdicts of all runs, by letter."""

    def __init__(self, evidence: Evidence, replays: Replays) -> None:
        self._found, self._replays = evidence, replays
        self._verdicts: dict[UUID, list[Verdict]] = defaultdict(list)
        for verdict in evidence.verdicts:
            self._verdicts[verdict.letter].append(verdict)

    def came_to(self, letter: Letter, *outcomes: Outcome) -> bool:
        """Whether one of these became of the letter in any run."""
        return any(verdict.outcome in outcomes for verdict in self._verdicts[letter.id])

    def has_acted(self, letter: Letter) -> bool:
        return self.came_to(letter, Outcome.RESOLVED, Outcome.SUPERSEDED)

    def blocks(self, letter: Letter) -> bool:
        """Whether somebody has yet to decide about it, for the first time or because a backfill failed at it again."""
        return letter.state in UNRESOLVED

    def stands(self, letter: Letter) -> bool:
        """Whether it is the one outcome of its event so far. A backfill that fails at what was resolved re-opens it."""
        return self.blocks(letter) and not self.came_to(letter, *_ENDS)

    def was_tried_mended(self, letter: Letter) -> bool:
        return any(verdict.run in self._replays.mended for verdict in self._verdicts[letter.id])

    def check(self, letters: Collection[Letter]) -> None:
        assert not self._replays.defects, f"G8: a runner ended with {self._replays.defects[0]!r}"
        unended = {run: state for run, state in self._found.runs.items() if state not in ("done", "stopped")}
        assert not unended, f"G8: all runners are gone, and these runs are {unended}"
        for letter in letters:
            self._check_letter(letter, self._verdicts[letter.id])
        self._check_tokens()
        told = sum(verdict.outcome in _ENDS for verdict in self._found.verdicts)
        assert self._found.outcomes_published == told, (
            f"G8: {self._found.outcomes_published} outcomes were told of {told}"
        )

    def _check_letter(self, letter: Letter, verdicts: list[Verdict]) -> None:
        """One outcome per run; the state says which came last; n failures are the most."""
        assert letter.state is not LetterState.REPLAYING, f"G8: {letter} is in no run's hands and says that it is"
        decided = Counter(verdict.run for verdict in verdicts if verdict.outcome not in _UNTOLD)
        assert max(decided.values(), default=0) <= 1, f"G8: {letter} has several outcomes in a run: {verdicts}"
        replays = sum(verdict.outcome in _COUNTED for verdict in verdicts)
        assert letter.replays == replays, f"G8: {letter} was replayed {replays} times: {verdicts}"
        failures = sum(verdict.outcome is Outcome.FAILED for verdict in verdicts)
        if self.stands(letter):
            is_quarantined = letter.state is LetterState.QUARANTINED
            assert is_quarantined == (failures >= MOST_REPLAYS), f"G8: {letter} failed in {failures} replays"
        elif not self.blocks(letter):
            assert self.came_to(letter, Outcome(letter.state)), f"G8: no run made {letter} what it is: {verdicts}"

    def _check_tokens(self) -> None:
        """G9: what a runner decided it decided while the run was its own."""
        tokens: Mapping[tuple[int, UUID, Outcome], set[int]] = defaultdict(set)
        for verdict in self._found.verdicts:
            tokens[verdict.run, verdict.letter, verdict.outcome].add(verdict.token)
        for held, letter, outcome in ((told.held, told.letter, told.outcome) for told in self._replays.told):
            found = tokens[held.run, letter, outcome]
            assert held.token in found, f"G9: {held} decided {outcome} of {letter}, the run's tokens then: {found}"
