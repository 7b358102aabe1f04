"""How the entries of a run are handled in a projection: they are applied, then told."""

from __future__ import annotations

from consumers.batch import Attempts
from consumers.decoding import Decoder
from consumers.ledger import Ledger
from consumers.projecting import Projected, project
from consumers.replay_opened import Fresh, Opened, claim_fresh, open_work
from consumers.replay_verdicts import Made, Taken, Verdicts
from consumers.replay_work import Work, confirm
from consumers.stable import apply_letters
from dlq.runs import Outcome, RunKind
from inbox.store import claimed_by_others
from projections.sink import Applied, Sink
from projections.stable import StableSink
from tidegate_kernel.postgres import Connection


class ProjectionHands:
    """Apply, then tell: newest wins, so a letter that newer events have overtaken is superseded and harms nothing."""

    def __init__(self, ledger: Ledger, decoder: Decoder, sink: Sink, *, kind: RunKind) -> None:
        self._ledger, self._decoder, self._sink, self._kind = ledger, decoder, sink, kind

    async def attempt(self, work: Work, attempts: Attempts, verdicts: Verdicts) -> Taken:
        opened = open_work(work, attempts, decoder=self._decoder, ledger=self._ledger, kind=self._kind)
        made = opened.made
        projected = project(opened.batch, opened.decoded, opened.claims, self._sink)
        applied = await self._apply(work, opened, projected, verdicts)
        # No position moves by a replay, so no refresher would notice: a letter that is resolved is visible.
        await self._sink.refresh()
        projected.refuse(applied.refused)
        for offset in projected.superseded(applied.stale_at):
            made.outcomes[offset] = Outcome.SUPERSEDED
        async with self._ledger.transaction() as connection:
            await confirm(connection, verdicts.held, work, silence_limit=verdicts.silence_limit)
            fresh = await claim_fresh(connection, self._ledger.origin.job, opened)
            _fail(opened, projected, fresh)
            return await verdicts.write(connection, work, made)

    async def _apply(self, work: Work, opened: Opened, projected: Projected, verdicts: Verdicts) -> Applied:
        async with self._ledger.transaction() as connection:
            # The store knows of no run. Whoever was asleep must not write what somebody has discarded meanwhile, and
            # nobody discards what is being written.
            await confirm(connection, verdicts.held, work, silence_limit=verdicts.silence_limit)
            if not isinstance(self._sink, StableSink):
                return await self._sink.apply(projected.encoded)
            # Before, not after: what somebody else has handled must not be counted again.
            fresh = await claim_fresh(connection, self._ledger.origin.job, opened, claimed_by_others)
        offsets = {arrival.record.offset for arrival in fresh.arrivals}
        await apply_letters(self._ledger, self._sink, opened.batch, projected, fresh=offsets)
        return Applied()

    async def rehearse(self, connection: Connection, work: Work, attempts: Attempts) -> Made:
        """Events become writes as the sink would want them, and none is sent: what the store refuses stays unknown."""
        opened = open_work(work, attempts, decoder=self._decoder, ledger=self._ledger, kind=RunKind.REPLAY)
        projected = project(opened.batch, opened.decoded, opened.claims, self._sink)
        fresh = await claim_fresh(connection, self._ledger.origin.job, opened, claimed_by_others)
        _fail(opened, projected, fresh)
        return opened.made


def _fail(opened: Opened, projected: Projected, fresh: Fresh) -> None:
    opened.made.fail_all(projected.letters(fresh.arrivals))
    opened.made.fail_all(opened.undecoded())
