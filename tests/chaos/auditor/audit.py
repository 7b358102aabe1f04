"""The audit of a run: reads everything, compares everything."""

from __future__ import annotations

from pathlib import Path

from tests.chaos.auditor.found import Addresses, read_everything
from tests.chaos.auditor.judge import judge
from tests.chaos.auditor.verdict import Verdict
from tests.chaos.auditor.written import compare_logs, read_producers_log


async def audit(at: Addresses, producers_log: Path) -> Verdict:
    """The servers must be up, and nothing may move any more."""
    found, sources, ends = await read_everything(at)
    return judge(compare_logs(read_producers_log(producers_log), sources, ends), found)
