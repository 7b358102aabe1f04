"""`tidegate dlq erase` as an admin types it: plan, deed, what is told of it later; and what leaves by policy."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable, Iterator

import asyncpg
import pytest

from tests.acceptance.cli import Cli, Worker
from tests.everywhere import columns_with
from tidegate_kernel.kafka import open_writer
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import Outgoing

pytestmark = [pytest.mark.servers, pytest.mark.timeout(300)]

Rows = Callable[[str], list[asyncpg.Record]]

JANE = "jane-4111"
_HEADERS = {"specversion": b"1.0", "source": b"/web", "type": b"payment.made"}


@pytest.fixture(scope="module")
def failed(admin_cli: Cli) -> Cli:
    """Of Jane a letter, and an event parked behind it; behind that one of somebody else. Nothing runs any more."""
    asyncio.run(_produce(admin_cli))
    worker = Worker(admin_cli.start("run", "ledger"))
    worker.wait_for("dead_letter.kept")
    assert worker.stop() == 0
    return admin_cli


async def _produce(cli: Cli) -> None:
    topic = f"{cli.environment['SMALL_PREFIX']}.payments"
    records = [
        Outgoing(topic, _value(name, cents), b"shared", _headers(name, n), partition=0)
        for n, (name, cents) in enumerate([(JANE, -5), (JANE, 7), ("john", 8)])
    ]
    async with open_writer(KafkaSettings(bootstrap=cli.environment["TIDEGATE_KAFKA_BOOTSTRAP"])) as writer:
        assert not any(await writer.write(records))


def _value(name: str, cents: int) -> bytes:
    return json.dumps({"payment": name, "cents": cents}).encode()


def _headers(name: str, n: int) -> list[tuple[str, bytes | None]]:
    told = _HEADERS | {"id": f"{name}-{n}".encode(), "correlationid": name.encode()}
    return [(f"ce_{each}", text) for each, text in told.items()]


@pytest.fixture(scope="module")
def command_cli(failed: Cli) -> Iterator[Cli]:
    """The same, connected as a role that has what `migrate --command-role` grants, and nothing else."""
    role, password = f"tide_command_{secrets.token_hex(4)}", secrets.token_hex(8)
    dsn = failed.environment["TIDEGATE_POSTGRES_DSN"]
    asyncio.run(_execute(dsn, f"CREATE ROLE {role} LOGIN PASSWORD '{password}'"))
    granted = failed.run("migrate", "--command-role", role)
    assert granted.returncode == 0, granted.stderr
    own = f"{dsn.partition('//')[0]}//{role}:{password}@{dsn.rpartition('@')[2]}"
    cli = Cli({**failed.environment, "TIDEGATE_POSTGRES_DSN": own})
    yield cli
    cli.close()
    asyncio.run(_execute(dsn, f"DROP OWNED BY {role} CASCADE; DROP ROLE {role}"))


async def _execute(dsn: str, statement: str) -> None:
    connection = await asyncpg.connect(dsn)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()


def _everywhere(cli: Cli) -> list[str]:
    async def search() -> list[str]:
        connection = await asyncpg.connect(cli.environment["TIDEGATE_POSTGRES_DSN"])
        try:
            return await columns_with(connection, JANE)
        finally:
            await connection.close()

    return asyncio.run(search())


def test_plan_tells_what_will_be_lost_and_does_nothing(command_cli: Cli, rows: Rows) -> None:
    """The last moment at which somebody can still say no, and nothing of whose data it is on the screen."""
    service = command_cli.environment["SMALL_PREFIX"]
    rows(f"INSERT INTO tidegate.job (service, code, claim_rule) VALUES ('{service}', 'search', 'v1')")

    done = command_cli.run("dlq", "erase", "--field", f"payment={JANE}")
    as_json = command_cli.json("dlq", "erase", "--field", f"payment={JANE}")

    assert done.returncode == 0, done.stderr
    assert JANE not in done.stdout + done.stderr + json.dumps(as_json)
    for told in (
        "ledger: 1 of the letters is undecided",
        "ledger: 2 events wait in the same sequences",
        "not looked into, they declare no field payment: search",
        ".ledger.dlq: copies stay for",
        "nothing was erased: add --reason and --yes",
    ):
        assert told in done.stdout, told
    assert (as_json["is_done"], as_json["left"]) == (False, 2)
    assert rows("SELECT count(*) FROM tidegate.dead_letter WHERE erased_at IS NOT NULL")[0][0] == 0


def test_letter_in_a_run_is_named_and_left(command_cli: Cli, rows: Rows) -> None:
    """Exit 1: somebody has to come back for it."""
    rows("UPDATE tidegate.dead_letter SET state = 'replaying', key = 'in-a-run'")

    named = command_cli.run("dlq", "erase", "--key", "in-a-run", "--reason", "ticket 1", "--yes")

    rows("UPDATE tidegate.dead_letter SET state = 'dead', key = 'shared'")
    assert named.returncode == 1
    assert "is just being replayed and was left alone" in named.stdout


def test_nothing_of_the_subject_is_left_and_all_commands_still_speak(failed: Cli, command_cli: Cli, rows: Rows) -> None:
    """The whole database is searched; what is left of the letter is told by every command that shows letters."""
    letter = str(rows("SELECT id FROM tidegate.dead_letter")[0][0])
    before = _everywhere(failed)

    done = command_cli.run(
        "dlq", "erase", "--field", "payment=-", "--reason", "ticket 4711", "--yes", stdin=f"{JANE}\n"
    )

    assert done.returncode == 0, done.stderr
    assert {name.partition(".")[0] for name in before} == {"dead_letter", "parked"}
    assert _everywhere(failed) == []
    assert JANE not in done.stdout + done.stderr
    for told in ("ledger: erased 1 letter, 1 parked event", "1 event waits with no letter before it any more"):
        assert told in done.stdout, told
    assert "nothing of it is left" in done.stdout
    shown = command_cli.run("dlq", "show", letter)
    assert shown.returncode == 0, shown.stderr
    assert "by tests, with key, value and headers" in shown.stdout
    assert "state:          discarded" in shown.stdout
    for words in (
        ["dlq", "list", "--status", "any"],
        ["dlq", "stats", "--status", "any"],
        ["dlq", "show", letter, "--payload"],
        ["dlq", "show", letter, "--json"],
        ["find", f"{command_cli.environment['SMALL_PREFIX']}.payments:0:0"],
    ):
        spoken = command_cli.run(*words)
        assert spoken.returncode == 0, (words, spoken.stderr)
    audited = rows("SELECT actor, target, reason, parameters FROM tidegate.audit WHERE reason = 'ticket 4711'")
    assert {(row["actor"], row["reason"]) for row in audited} == {("tests", "ticket 4711")}
    assert [json.loads(row["parameters"])["letters"] for row in audited] == [{}, {"dead": 1}]


def test_worker_lets_decided_letters_go_by_policy(failed: Cli, rows: Rows) -> None:
    """And says how many, also where it runs with the setting's least value."""
    rows(
        """
        INSERT INTO tidegate.dead_letter (
            id, job, topic, topic_id, partition, "offset", value, reason, error_class, error_message, fingerprint,
            attempts, state, decided_at
        )
        SELECT
            gen_random_uuid(), j.id, 't', gen_random_uuid(), 0, 1, 'x', 'rejected', 'Rejected', '', '',
            1, 'resolved', now() - interval '25 hours'
        FROM tidegate.job AS j
        WHERE j.code = 'ledger'
        """
    )

    failed.json("jobs", "run", "tidegate.letters", "--reason", "not in an hour: now")
    worker = Worker(failed.start("run", "ledger", TIDEGATE_LETTER_RETENTION="1d"))
    told = worker.wait_for("dead_letter.expired")
    assert worker.stop() == 0

    assert (told["job"], told["letters"]) == ("ledger", 1)
    assert rows("SELECT count(*) FROM tidegate.dead_letter WHERE topic = 't'")[0][0] == 0


@pytest.mark.parametrize(
    "arguments, words",
    [
        ((), "either --key KEY or --field NAME=VALUE"),
        (("--key", "a", "--field", "b=c"), "either --key KEY or --field NAME=VALUE"),
        (("--field", "payment"), "--field takes NAME=VALUE"),
        (("--field", "email=x"), "they declare: payment"),
        (("--key", "a", "--job", "gone"), "has no job 'gone'"),
    ],
)
def test_wrong_question_names_the_form(failed: Cli, arguments: tuple[str, ...], words: str) -> None:
    """Exit 2, before anything is looked for."""
    done = failed.run("dlq", "erase", *arguments)

    assert done.returncode == 2
    assert words in done.stderr
