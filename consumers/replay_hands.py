"""How each kind of job handles the entries of a run: through its own decoder, handlers, judge and sink."""

from __future__ import annotations

from typing import Protocol

from consumers.batch import Attempts
from consumers.replay_verdicts import Made, Taken, Verdicts
from consumers.replay_work import Work
from tidegate_kernel.postgres import Connection


class Hands(Protocol):
    """How a kind of job handles what a run has taken up."""

    async def attempt(self, work: Work, attempts: Attempts, verdicts: Verdicts) -> Taken:
        """Effects and verdicts are final together, or nothing is.

        Raises LeaseLost (the run is another's), Transient (wait, look again, try again with the same attempts).
        """

    async def rehearse(self, connection: Connection, work: Work, attempts: Attempts) -> Made:
        """Returns what would become of the entries. Nothing is claimed, kept or written to a sink; what handlers do is
        done in the caller's transaction, which he rolls back.

        Raises Transient: roll back, wait, try again with the same attempts.
        """
