"""The shop's expired exports: rows and files, whatever happens between the two."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from examples.shop.exports.files import ExportFiles, ExportsAway, file_of
from examples.shop.exports.making import make_export
from tests.integration.exports_process import STEPS
from tests.integration.shop_exports import AURORA, OLD, OTHER, YOUNG, ExportShop
from tidegate.dry_running import dry_run
from tidegate.jobs.clockwork.requests import RunRequest
from tidegate.jobs.clockwork.runs import RunState
from tidegate_kernel.clock import SystemClock
from tidegate_kernel.event import NO_SCOPE
from tidegate_kernel.postgres import Pool

pytestmark = pytest.mark.servers

Victims = Callable[[str], int]

_ROOT = Path(__file__).parents[2]

LEFT_AT = {
    "before the first file": (7, 7, []),
    "between two files": (5, 7, []),
    "after the files": (4, 7, []),
    "before the commit": (4, 7, []),
    "after the commit": (4, 4, [3]),
}
"""Files and rows of seven expired exports, and the audit, when the process dies in its first chunk of three."""


@pytest.fixture
async def exports(pool: Pool, database: str, tmp_path: Path) -> ExportShop:
    made = ExportShop(pool, database, tmp_path / "exports")
    await made.prepare()
    return made


@pytest.fixture(scope="module")
def victims() -> Iterator[Victims]:
    """Makes a process for a line of words and returns how it ended."""
    command = [sys.executable, str(Path(__file__).with_name("exports_process.py"))]
    environment = os.environ | {"PYTHONPATH": str(_ROOT)}
    with subprocess.Popen(
        command, cwd=_ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        words, answers = process.stdin, process.stdout

        def end_of(line: str) -> int:
            print(line, file=words, flush=True)
            return int(answers.readline())

        yield end_of
        words.close()


async def test_expired_exports_lose_row_and_file_and_no_others_do(exports: ExportShop) -> None:
    """Thirty days, by tenant and brand, in chunks of three; what somebody holds stays however old it is."""
    await exports.add(7)
    await exports.add(2, age=YOUNG)
    await exports.add(1, is_held=True)
    await exports.add(2, scope=OTHER)

    assert await exports.work_off(await exports.claim()) is RunState.DONE

    assert len(await exports.rows()) == 5
    assert exports.on_disk() == await exports.rows()
    assert await exports.audited_items() == [3, 3, 1]
    run = await exports.pool.fetchrow("SELECT processed, failed FROM tidegate.job_run")
    assert run is not None
    assert tuple(run) == (7, 0)


@pytest.mark.parametrize("step", STEPS)
async def test_kill_at_any_step_leaves_nothing_orphaned(
    exports: ExportShop, database: str, victims: Victims, step: str
) -> None:
    """SIGKILL. At no time is there a file without a row that remembers it, so the next run finds all there is; every
    removal is in the audit, and none twice."""
    await exports.add(7)
    young = await exports.add(2, age=YOUNG)

    assert await asyncio.to_thread(victims, f"{database} {exports.files.directory} {step}") == -signal.SIGKILL
    await nobody_else_is_connected(exports.pool)

    files, rows = exports.on_disk(), await exports.rows()
    assert files <= rows, "a file that nobody knows of"
    assert (len(files - young), len(rows - young), await exports.audited_items()) == LEFT_AT[step]

    assert await exports.work_off(await exports.claim_after_death()) is RunState.DONE
    assert exports.on_disk() == await exports.rows() == young
    assert sum(await exports.audited_items()) == 7


async def nobody_else_is_connected(pool: Pool) -> None:
    """The dead process's transaction is rolled back once its server has noticed."""
    others = """
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND state <> 'idle' AND pid <> pg_backend_pid()
    """
    async with asyncio.timeout(30):
        while await pool.fetchval(others):
            await asyncio.sleep(0.02)


async def test_disk_that_is_away_keeps_the_rows(exports: ExportShop) -> None:
    """An unmounted volume looks like an empty directory, in which every file seems to be gone: the rows must not go.
    The run waits, nothing is given up, and goes on when the disk is back."""
    await exports.add(2)
    directory, elsewhere = exports.files.directory, exports.files.directory.with_name("elsewhere")
    directory.rename(elsewhere)
    directory.mkdir()
    run = await exports.claim()

    assert await exports.work_off(run) is RunState.DUE
    assert (len(await exports.rows()), await exports.audited_items()) == (2, [])
    assert not await exports.files.is_there()

    directory.rmdir()
    elsewhere.rename(directory)
    await exports.pool.execute("UPDATE tidegate.job_run SET due_at = now()")
    (again,) = await (await exports.scheduler("worker")).claim(1)
    assert await exports.work_off(again) is RunState.DONE
    assert exports.on_disk() == await exports.rows() == set()


async def test_file_that_cannot_be_removed_keeps_its_row_and_holds_up_no_other(exports: ExportShop) -> None:
    """A directory in the file's place, for want of a disk that fails: its row stays, to be tried again."""
    await exports.add(4)
    stubborn = min(await exports.rows())
    exports.name_of(stubborn).unlink()
    exports.name_of(stubborn).mkdir()

    assert await exports.work_off(await exports.claim()) is RunState.DONE
    assert await exports.rows() == {stubborn}

    exports.name_of(stubborn).rmdir()
    assert await exports.work_off(await exports.claim()) is RunState.DONE
    assert await exports.rows() == set()


async def test_export_that_broke_off_while_it_was_made_has_a_row(exports: ExportShop) -> None:
    """Row first: what is half written is never ready, and goes with the others after its time."""
    nowhere = ExportFiles(exports.files.directory / "missing")
    async with exports.pool.acquire() as connection:
        made = await make_export(connection, exports.files, AURORA, customer_id="c-1", content=b"x")
        with pytest.raises(ExportsAway):
            await make_export(connection, nowhere, AURORA, customer_id="c-2", content=b"x")

    ready = {row["id"]: row["is_ready"] for row in await exports.pool.fetch("SELECT id, is_ready FROM export")}
    assert (ready.pop(made), list(ready.values())) == (True, [False])
    assert exports.on_disk() == {made}

    await exports.pool.execute("UPDATE export SET requested_at = now() - $1::interval", OLD)
    assert await exports.work_off(await exports.claim()) is RunState.DONE
    assert exports.on_disk() == await exports.rows() == set()


async def test_dry_run_tells_of_every_scope_and_removes_nothing(
    exports: ExportShop, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What an operator asks before the first night; customers' data, so numbers alone."""
    monkeypatch.setenv("SHOP_EXPORTS", str(exports.files.directory))
    await exports.add(7)
    await exports.add(2, age=YOUNG)
    await exports.add(1, scope=OTHER)
    asked = RunRequest(job=exports.job, scope=NO_SCOPE, at=SystemClock().now())

    told = await dry_run(exports.app, exports.settings, asked, stop=exports.stop)

    assert {(each.tenant, each.brand): (each.items, each.chunks, each.first) for each in told if each.items} == {
        ("aurora", "vinyl"): (7, 3, None),
        ("borealis", "vinyl"): (1, 1, None),
    }
    assert len(told) == 6
    assert len(exports.on_disk()) == len(await exports.rows()) == 10
    assert await exports.pool.fetchval("SELECT count(*) FROM tidegate.job_run") == 0
    assert await exports.pool.fetchval("SELECT count(*) FROM tidegate.audit") == 0


async def test_who_gives_up_on_a_disk_that_hangs_removes_nothing_more(exports: ExportShop) -> None:
    """The thread goes on when the disk does; somebody may have asked for the rest to be kept by then."""
    first, second = await exports.add(2)
    asked = iter([False, True])

    exports.files.remove([first, second], lambda: next(asked))

    assert [file.name for file in exports.files.directory.glob("*.csv")] == [file_of(second)]
