"""`tidegate dlq edit` as an admin types it: the plan, the deed, and what a worker makes of the record afterwards."""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import asyncpg
import pytest

from dlq.corrections import LARGEST_VALUE
from tests.acceptance.cli import Cli, Worker
from tidegate_kernel.kafka import open_writer
from tidegate_kernel.permissions import Role
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import Outgoing

pytestmark = [pytest.mark.servers, pytest.mark.timeout(200)]

Rows = Callable[[str], list[asyncpg.Record]]

BROKEN = b'{"payment": "4111", "cents": '
FIXED = b'{"payment": "4111", "cents": 5}'


@pytest.fixture(scope="module")
def failed(admin_cli: Cli) -> Cli:
    """A record of acme that cannot be decoded is a dead letter. Nothing runs any more."""
    asyncio.run(_produce(admin_cli))
    worker = Worker(admin_cli.start("run", "ledger"))
    worker.wait_for("dead_letter.kept")
    assert worker.stop() == 0
    return admin_cli


async def _produce(cli: Cli) -> None:
    told = {"specversion": b"1.0", "source": b"/web", "type": b"payment.made", "tenantid": b"acme", "id": b"e1"}
    headers = [(f"ce_{name}", text) for name, text in told.items()]
    record = Outgoing(f"{cli.environment['SMALL_PREFIX']}.payments", BROKEN, b"k", headers, partition=0)
    async with open_writer(KafkaSettings(bootstrap=cli.environment["TIDEGATE_KAFKA_BOOTSTRAP"])) as writer:
        assert not any(await writer.write([record]))


@pytest.fixture
def letter(failed: Cli, rows: Rows) -> str:
    """The letter, which nobody has corrected yet."""
    rows("DELETE FROM tidegate.correction")
    return str(failed.json("dlq", "list")["letters"][0]["id"])


def fixed(folder: Path, value: bytes = FIXED) -> str:
    file = folder / "value"
    file.write_bytes(value)
    return str(file)


def test_plan_tells_sizes_digests_and_what_the_job_makes_of_it(failed: Cli, letter: str, tmp_path: Path) -> None:
    """Whoever decides sees whether the new value is any better, before anything is changed and without the payload."""
    done = failed.run("dlq", "edit", letter, "--value-file", fixed(tmp_path))
    as_json = failed.json("dlq", "edit", letter, "--value-file", fixed(tmp_path))

    assert done.returncode == 0, done.stderr
    for value in (BROKEN, FIXED):
        assert f"{len(value)} bytes, sha256 {hashlib.sha256(value).hexdigest()}" in done.stdout
    assert "decodes to payment.made, id e1" in done.stdout
    assert "nothing was changed; add --reason" in done.stderr
    assert "4111" not in done.stdout + done.stderr
    assert (as_json["is_event"], as_json["is_done"], as_json["next"]) == (True, False, None)
    assert failed.json("dlq", "show", letter)["corrected"] is None


def test_plan_tells_what_is_still_wrong(failed: Cli, letter: str, tmp_path: Path) -> None:
    """An edit that fails in its turn is not worth a replay; the reason and the field are told, not the value."""
    told = failed.json("dlq", "edit", letter, "--value-file", fixed(tmp_path, b'{"payment": "4111"}'))

    assert told["is_event"] is False
    assert "does not decode, invalid_event: " in told["reading"]
    assert "cents" in told["reading"]
    assert "4111" not in told["reading"]


def test_edit_is_kept_shown_and_audited_without_the_payload(failed: Cli, letter: str, rows: Rows) -> None:
    """Later reads go by it; the letter is as it was, and the audit proves what was replaced by what."""
    typed = ("dlq", "edit", letter, "--value-file", "-", "--reason", "cut off", "--yes")
    done = failed.run(*typed, stdin=FIXED.decode())

    assert done.returncode == 0, done.stderr
    assert f"tidegate dlq replay --letter {letter}" in done.stdout
    assert "audit " in done.stderr
    [kept] = rows("SELECT kind, value, reason, made_by FROM tidegate.correction")
    assert tuple(kept) == ("edit", FIXED, "cut off", "tests")
    [row] = rows("SELECT state, value FROM tidegate.dead_letter")
    assert tuple(row) == ("dead", BROKEN)
    shown = failed.run("dlq", "show", letter)
    assert f"edited to {len(FIXED)} bytes by tests at " in shown.stdout
    assert "cut off" in shown.stdout
    assert f"tidegate dlq replay --letter {letter}" in shown.stdout.splitlines()[-1]
    assert "4111" not in done.stdout + shown.stdout
    opened = failed.json("dlq", "show", letter, "--payload")["payload"]
    assert (opened["value"]["text"], opened["edited_value"]["text"]) == (BROKEN.decode(), FIXED.decode())
    [audited] = rows("SELECT * FROM tidegate.audit WHERE action = 'dlq:edit' AND outcome = 'done' ORDER BY seq DESC")[
        :1
    ]
    assert (audited["target"], audited["reason"]) == (f"letter {letter}", "cut off")
    assert "4111" not in str(dict(audited))
    told = json.loads(audited["parameters"])
    digests = [hashlib.sha256(value).hexdigest() for value in (BROKEN, FIXED)]
    assert [told["before"]["sha256"], told["after"]["sha256"]] == digests


@pytest.mark.parametrize("role", [Role.VIEWER, Role.OPERATOR, None])
def test_edit_is_for_admins(failed: Cli, letter: str, role: Role | None, tmp_path: Path, rows: Rows) -> None:
    """It changes what an event said: exit 3, nothing is kept, and the audit says who tried."""
    token = ""
    if role is not None:
        rows(f"UPDATE tidegate.access_token SET revoked_at = now() WHERE name = '{role}'")
        token = failed.run("tokens", "create", role, "--role", role).stdout.strip()
    typed = ("dlq", "edit", letter, "--value-file", fixed(tmp_path), "--reason", "cut off", "--yes")

    done = failed.run(*typed, TIDEGATE_TOKEN=token)

    assert done.returncode == 3, done.stderr
    assert "a token with role admin" in done.stderr
    assert rows("SELECT 1 FROM tidegate.correction") == []
    [audited] = rows("SELECT action, outcome, actor FROM tidegate.audit ORDER BY seq DESC LIMIT 1")
    assert tuple(audited) == ("dlq:edit", "denied", role or "nobody")


def test_token_of_a_tenant_edits_its_letters_alone(failed: Cli, letter: str, tmp_path: Path, rows: Rows) -> None:
    """G12 for hands: acme's letter by acme's token, to what is acme's; another tenant's letter is refused."""
    rows("UPDATE tidegate.access_token SET revoked_at = now() WHERE name = 'acme'")
    token = failed.run("tokens", "create", "acme", "--role", "admin", "--tenant", "acme").stdout.strip()
    typed = ("dlq", "edit", letter, "--value-file", fixed(tmp_path), "--reason", "tests", "--yes")
    rows("UPDATE tidegate.dead_letter SET tenant = 'zeta'")
    try:
        foreign = failed.run(*typed, TIDEGATE_TOKEN=token)
    finally:
        rows("UPDATE tidegate.dead_letter SET tenant = 'acme'")
    own = failed.run(*typed, TIDEGATE_TOKEN=token)

    assert (foreign.returncode, own.returncode) == (3, 0), foreign.stderr + own.stderr
    assert "limited to tenants acme" in foreign.stderr


@pytest.mark.parametrize(
    "state, value, code, words",
    [
        ("dead", b"x" * (LARGEST_VALUE + 1), 2, f"larger than {LARGEST_VALUE} bytes"),
        ("discarded", FIXED, 2, "is discarded; only a letter that is dead or quarantined"),
        ("resolved", FIXED, 2, "is resolved; only a letter that is dead or quarantined"),
        ("replaying", FIXED, 1, "is being replayed"),
    ],
)
def test_what_cannot_be_edited_is_said_to_be(
    failed: Cli, letter: str, state: str, value: bytes, code: int, words: str, tmp_path: Path, rows: Rows
) -> None:
    """What somebody has decided stands, and the limit is named."""
    rows(f"UPDATE tidegate.dead_letter SET state = '{state}'")
    try:
        done = failed.run("dlq", "edit", letter, "--value-file", fixed(tmp_path, value), "--reason", "tests", "--yes")
    finally:
        rows("UPDATE tidegate.dead_letter SET state = 'dead'")

    assert done.returncode == code, done.stderr
    assert words in done.stderr
    assert rows("SELECT 1 FROM tidegate.correction") == []


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("17", "--value-file", "small.py"), "no letter's id"),
        (("00000000-0000-0000-0000-00000000ffff", "--value-file", "small.py"), "there is no dead letter"),
        (("00000000-0000-0000-0000-00000000ffff", "--value-file", "gone"), "'gone' cannot be read"),
    ],
)
def test_wrong_edit_names_the_form(failed: Cli, arguments: tuple[str, ...], words: str) -> None:
    """Exit 2: the question was wrong, whatever there is to edit."""
    done = failed.run("dlq", "edit", *arguments)

    assert done.returncode == 2
    assert words in done.stderr


def test_a_backfill_goes_by_the_edit(failed: Cli, letter: str, rows: Rows) -> None:
    """From the command to what a job reads. The record's own letter still blocks its key, so the event waits there as
    edited, for the replay of the letter."""
    typed = ("dlq", "edit", letter, "--value-file", "-", "--reason", "cut off", "--yes")
    assert failed.run(*typed, stdin=FIXED.decode()).returncode == 0

    done = failed.run("run", "ledger", "--backfill", "--from-beginning")

    assert done.returncode == 0, done.stderr
    [kept] = rows("SELECT occurrences, value, state FROM tidegate.dead_letter")
    assert tuple(kept) == (1, BROKEN, "dead")
    [waiting] = rows("SELECT event_id, value FROM tidegate.parked")
    assert tuple(waiting) == ("e1", FIXED)
