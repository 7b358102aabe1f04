"""A run that fails in its middle: what it has done stands, and the next one goes on at its checkpoint."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from examples.shop.catalogue.job import disc_catalogue
from examples.shop.catalogue.provider_server import Company, disc_before
from examples.shop.demo_jobs.app import CATALOGUE
from examples.shop.demo_jobs.planted import BROKEN, BROKEN_DISC, DISCS_A_BRAND, disc_name, price_of
from examples.shop.demo_jobs.report import Report
from examples.shop.demo_jobs.runs import Runs

_PAGE = disc_catalogue().batch_size

# The runs of a scope that have ended by themselves, in their order. $1 job, $2 tenant, $3 brand.
_ENDED = """
SELECT r.id, r.state, r.processed, r.skipped, r.error_message
FROM tidegate.job_run AS r
JOIN tidegate.job AS j ON j.id = r.job
WHERE j.code = $1 AND r.tenant = $2 AND r.brand = $3 AND r.state IN ('done', 'failed', 'stalled')
ORDER BY r.id
"""
_CHECKPOINT = """
SELECT c.cursor
FROM tidegate.job_checkpoint AS c
JOIN tidegate.job AS j ON j.id = c.job
WHERE j.code = $1 AND c.tenant = $2 AND c.brand = $3
"""
_DISCS = "SELECT disc_id, price_cents FROM disc WHERE tenant = $1 AND brand = $2"


@dataclass(frozen=True)
class BrokenRun:
    """A disc that cannot be kept, the run that ends there, and the one that goes on once the company has mended it."""

    runs: Runs
    company: Company
    report: Report

    async def tell(self) -> str:
        """The story, whose figures are in the report; returns it in a sentence."""
        await self.runs.until(self._has_failed, what=f"a run of {CATALOGUE} to fail")
        before = next(run for run in await self._ended() if run["state"] == "failed")
        checkpoint = json.loads(await self._fetchval(_CHECKPOINT))
        asked = len(self.company.asked)
        self.company.mend(BROKEN.brand, disc_name(BROKEN_DISC), price_cents=price_of(BROKEN_DISC))
        await self.runs.until(self._is_done, what=f"the next run of {CATALOGUE} to go on")
        await self._compare(before["id"], checkpoint.get("page"), asked)
        return f"run {before['id']} of {CATALOGUE} failed at {disc_name(BROKEN_DISC)}: {before['error_message']}"

    async def _compare(self, failed: int, page: str | None, asked: int) -> None:
        """With what was planted, and with what the company was asked: it knows nothing of runs and checkpoints."""
        figure, ended = self.report.figure, await self._ended()
        upto = next(place for place, run in enumerate(ended) if run["state"] == "done") + 1
        states = ", ".join(dict.fromkeys(run["state"] for run in ended[:upto]))
        first_half = sum(run["processed"] for run in ended[:upto] if run["id"] <= failed)
        passed = BROKEN_DISC // _PAGE * _PAGE
        figure("a run that met a disc it could not keep, and the next", "failed, done", states)
        figure("discs that the failed run had done", BROKEN_DISC, first_half)
        figure("its checkpoint: a page that begins behind disc", disc_name(passed - 1), disc_before(page))
        figure("the company was asked next for what is behind", disc_name(passed - 1), self._asked_behind(asked))
        figure("discs of that page passed over as done", BROKEN_DISC - passed, ended[upto - 1]["skipped"])
        second_half = sum(run["processed"] for run in ended[:upto] if run["id"] > failed)
        figure("discs that were left, and done by the next", DISCS_A_BRAND - BROKEN_DISC, second_half)
        told = {disc.id: disc.price_cents for disc in self.company.discs[BROKEN.brand].values()}
        right = [row for row in await self._fetch(_DISCS) if told.get(row["disc_id"]) == row["price_cents"]]
        figure("discs of that customer as the company has them", DISCS_A_BRAND, len(right))

    def _asked_behind(self, asked: int) -> str:
        """The disc behind which the first question since then begins."""
        whose = {"tenant": BROKEN.tenant, "brand": BROKEN.brand}
        first = next(each for each in self.company.asked[asked:] if whose.items() <= each.items())
        return disc_before(first.get("page"))

    async def _has_failed(self) -> bool:
        return any(run["state"] == "failed" for run in await self._ended())

    async def _is_done(self) -> bool:
        return any(run["state"] == "done" for run in await self._ended())

    async def _ended(self) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = await self.runs.database.fetch(_ENDED, CATALOGUE, BROKEN.tenant, BROKEN.brand)
        return found

    async def _fetch(self, query: str) -> list[Mapping[str, Any]]:
        found: list[Mapping[str, Any]] = await self.runs.database.fetch(query, BROKEN.tenant, BROKEN.brand)
        return found

    async def _fetchval(self, query: str) -> str:
        return str(await self.runs.database.fetchval(query, CATALOGUE, BROKEN.tenant, BROKEN.brand))
