"""The repair, as an operator carries it out: rehearse, plan, replay, and resume what was killed in the middle."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from examples.shop.demo.purchases import Purchase
from examples.shop.demo.watch import Watch
from examples.shop.demo_dlq.commands import Console, Typed, ended
from examples.shop.demo_dlq.kill import kill_in_the_middle, unproven, until_taken_for_dead
from examples.shop.demo_dlq.others import others_of
from examples.shop.demo_dlq.report import Report
from examples.shop.demo_dlq.standing import LEDGER, Standing, differences, standing

_REASON = ("--reason", "mended in 4.2")
# Letters and parked events a second: slow enough for the kill to come in the middle.
_SLOWLY = ("--rate", "80")
_SETTLE_SECONDS = 60.0


@dataclass(frozen=True)
class Repair:
    """What is wrong goes into `report`. `watch` has the worker of the mended release."""

    watch: Watch
    console: Console
    report: Report
    purchases: Sequence[Purchase]

    async def carry_out(self) -> None:
        """All letters are resolved; or it has ended before, and the report says why. Raises TrialFailed."""
        before = await standing(self.watch.database)
        chosen = ("--job", LEDGER, "--fingerprint", before.kinds[0][1]) if before.kinds else ("--job", LEDGER)
        if not await self._rehearse(chosen, before):
            return
        plan = (await self.console.type("dlq", "replay", *chosen, "--json")).as_json
        self._say(
            f"  plan {plan['digest']}: {len(plan['letters'])} letters of {plan['keys']} keys; nothing is changed yet"
        )
        self.report.figure("4. letters in the plan", before.letters.get("dead", 0), len(plan["letters"]))
        async with others_of(self.watch.place, self.watch.http, self.watch.workers[-1]) as others:
            seen = await others.seen()
            await self._replay(chosen, plan)
            await self.watch.until_settled(self.report.produced, seconds=_SETTLE_SECONDS)
            self._say("5. what has everybody else seen of it?")
            self.report.others = {what: count - seen[what] for what, count in (await others.seen()).items()}
        for what, count in self.report.others.items():
            self.report.figure(f"5. {what}: more than before", 0, count)

    async def _rehearse(self, chosen: Sequence[str], before: Standing) -> bool:
        """Whether all would pass, and nothing has changed."""
        self._say("3. rehearsal: today's code takes the letters, and all of it is rolled back")
        typed = await self.console.type("dlq", "replay", *chosen, "--rehearse", "--json")
        told: dict[str, Any] = typed.as_json["rehearsal"]
        self.report.rehearsal = told
        self._say(
            f"  {told['passing']} of {told['letters']} letters would pass, {told['failing']} fail; "
            f"of what is parked {told['parked_passing']} would pass, {told['parked_failing']} fail"
        )
        self.report.figure("3. rehearsal: letters that would pass", before.letters.get("dead", 0), told["passing"])
        self.report.figure("3. rehearsal: parked that would pass", len(before.parked), told["parked_passing"])
        self.report.require(await standing(self.watch.database) == before, "the rehearsal has changed something")
        if typed.code != 0:
            named = min(before.dead, default="none")
            self.report.failures.append(f"the rehearsal failed, for order {named} and others: nothing was replayed")
        return typed.code == 0

    async def _replay(self, chosen: Sequence[str], plan: dict[str, Any]) -> None:
        self._say("4. the replay, slowly; it will be killed with SIGKILL in the middle")
        bound = ("--digest", plan["digest"], *_REASON, *_SLOWLY, "--yes")
        process = await self.console.begin("dlq", "replay", *chosen, *bound)
        self.report.kill = await kill_in_the_middle(process, self.watch.database)
        typed = await ended(process)
        if self.report.kill is None:
            self.report.failures.append(f"the replay ended with {typed.code} before it was killed: {typed.said[-500:]}")
            return
        await self._judge_kill()
        self.report.run = await self._newest_run()
        await self._resume(self.report.run)

    async def _judge_kill(self) -> None:
        """Every transaction came whole or not at all: the accounts lack exactly what is still dead or parked."""
        kill, found = self.report.kill, await standing(self.watch.database)
        if kill is None:
            return
        what = "a transaction of it had written and was open" if kill.transactions else "between two transactions"
        self._say(
            f"  killed: {found.resolved} of {kill.letters} letters are resolved, {len(found.dead)} are not; {what}"
        )
        self.report.require(0 < found.resolved < kill.letters, "the kill was not in the middle")
        self.report.figure("4. resolved before the kill, and left", kill.letters, found.resolved + len(found.dead))
        lacking = list(differences(found.accounts, self.purchases, without=found.left))
        self.report.figure("4. accounts that the kill left wrong", 0, len(lacking))
        self.report.failures += [*lacking, *await unproven(kill, self.watch.database)]

    async def _newest_run(self) -> int:
        told = (await self.console.type("dlq", "runs", "--job", LEDGER, "--json")).as_json
        return int(told["runs"][0]["id"])

    async def _resume(self, run: int) -> None:
        early = await self.console.type("dlq", "replay", "--resume", str(run))
        self.console.show(early.said)
        self.report.figure("4. resumed too early: exit code", 1, early.code)
        self._say("  the lease of the killed runner runs out: half a minute")
        await until_taken_for_dead(self.watch.database, run)
        resumed: Typed = await self.console.type("dlq", "replay", "--resume", str(run))
        self.console.show(resumed.printed)
        self.report.figure("4. resumed: exit code", 0, resumed.code)
        found = await standing(self.watch.database)
        self.report.figure("4. letters resolved", sum(found.letters.values()), found.resolved)
        self.report.figure("4. events still parked", 0, len(found.parked))

    def _say(self, text: str) -> None:
        self.watch.screen.say(text)
