"""Every action as every kind of bearer, typed as a command: the allowed is done, the rest refused, all is audited."""

from __future__ import annotations

import ast
import asyncio
from collections.abc import Callable, Iterator, Mapping
from datetime import timedelta
from subprocess import CompletedProcess

import asyncpg
import pytest
from aiokafka.admin import AIOKafkaAdminClient, RecordsToDelete
from aiokafka.structs import TopicPartition as ClientPartition

from tests.acceptance.apps import small
from tests.acceptance.cli import Cli
from tests.acceptance.deeds import COMMANDS, NOT_YET
from tests.architecture.source import walk
from tidegate_kernel.kafka import open_reader, open_writer
from tidegate_kernel.permissions import LEAST_ROLE, NEEDS_REASON, Action, Actor, Role
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import Outgoing
from tidegate_kernel.token_deeds import Grant, create_token
from tidegate_kernel.tokens import NOBODY

pytestmark = [pytest.mark.servers, pytest.mark.timeout(400)]

Rows = Callable[[str], list[asyncpg.Record]]

_ACME = frozenset({"acme"})
GRANTS = {
    "viewer": Grant("viewer", Role.VIEWER),
    "operator": Grant("operator", Role.OPERATOR),
    "admin": Grant("admin", Role.ADMIN),
    "expired": Grant("expired", Role.ADMIN, lifetime=timedelta(days=1)),
    "revoked": Grant("revoked", Role.ADMIN),
    "acme-only": Grant("acme-only", Role.ADMIN, tenants=_ACME),
}


@pytest.fixture(scope="module")
def bearers(ready_cli: Cli) -> Iterator[Mapping[str, Cli]]:
    """The service as everybody types it, by the name of the bearer as the audit has it."""
    texts = asyncio.run(_tokens(ready_cli)) | {"unknown": "tg_not-one-of-ours"}
    typists = {name: Cli({**ready_cli.environment, "TIDEGATE_TOKEN": text}) for name, text in texts.items()}
    asyncio.run(_begin_positions(ready_cli))
    yield {NOBODY: ready_cli, **typists}
    for cli in typists.values():
        cli.close()


@pytest.mark.parametrize("action", list(COMMANDS))
def test_each_bearer_does_what_its_role_allows_and_no_more(
    action: Action, bearers: Mapping[str, Cli], rows: Rows
) -> None:
    """The table of docs/access.md, from outside: refused is exit 3 with the remedy, and either way a row says so."""
    allowed = [role.value for role in Role if role.includes(LEAST_ROLE[action])]
    refused = [name for name in bearers if name not in allowed]
    _prepare(action, rows)
    last = rows("SELECT coalesce(max(seq), 0) FROM tidegate.audit")[0][0]

    tokens = {name: bearers[name].environment.get("TIDEGATE_TOKEN") for name in refused}
    words = COMMANDS[action].words(0, _topic(bearers[NOBODY]))
    ends = bearers[NOBODY].run_as(tokens, *words)
    assert {name: done.returncode for name, done in ends.items()} == dict.fromkeys(refused, 3), ends
    for name, done in ends.items():
        assert ("TIDEGATE_TOKEN" in done.stderr) or (name == "acme-only" and "limited to" in done.stderr), done.stderr
    denied = rows(f"SELECT actor, action, outcome FROM tidegate.audit WHERE seq > {last} ORDER BY actor")
    actors = sorted(NOBODY if name == "unknown" else name for name in refused)
    assert [tuple(row) for row in denied] == [(actor, action, "denied") for actor in actors]

    for n, name in enumerate(allowed, start=1):
        _prepare(action, rows)
        last = rows("SELECT max(seq) FROM tidegate.audit")[0][0]
        done = _type(bearers[name], action, n)
        assert done.returncode == 0, done.stderr
        found = rows(f"SELECT actor, action, outcome FROM tidegate.audit WHERE seq > {last}")
        assert (name, action, "done") in [tuple(row) for row in found]
        assert "audit " in done.stderr, "the receipt"


@pytest.mark.parametrize("action", [action for action in COMMANDS if action in NEEDS_REASON])
def test_what_others_will_ask_about_is_refused_without_a_reason(
    action: Action, bearers: Mapping[str, Cli], rows: Rows
) -> None:
    """An admin in a hurry included: the next one on call reads why."""
    _prepare(action, rows)
    words = COMMANDS[action].words(0, _topic(bearers["admin"]))
    at = words.index("--reason")

    done = bearers["admin"].run(*words[:at], *words[at + 2 :], "--reason", "  ")

    assert done.returncode == 3, done.stderr
    assert "--reason" in done.stderr


def test_token_of_a_tenant_acts_within_it(bearers: Mapping[str, Cli], rows: Rows) -> None:
    """G12 for hands: what concerns its tenant alone a limited token may do, and nothing of another's."""
    own = bearers["acme-only"].run("pause", "ledger", "--tenant", "acme", "--reason", "tests")
    foreign = bearers["acme-only"].run("pause", "ledger", "--tenant", "zeta", "--reason", "tests")

    assert (own.returncode, foreign.returncode) == (0, 3), own.stderr + foreign.stderr
    newest = rows("SELECT tenant, outcome FROM tidegate.audit ORDER BY seq DESC LIMIT 2")
    assert [tuple(row) for row in newest] == [("zeta", "denied"), ("acme", "done")]


def test_every_action_is_typed_here_as_soon_as_it_has_a_command() -> None:
    """An action that code uses and that no row tries would be allowed to anybody, unseen."""
    used = {
        Action[each.node.attr]
        for each in walk("tidegate", "tidegate_kernel", "consumers", "dlq", "inbox", "projections")
        if isinstance(each.node, ast.Attribute)
        and isinstance(each.node.value, ast.Name)
        and each.node.value.id == "Action"
        and each.file != "tidegate_kernel/permissions.py"
    }

    assert used == set(COMMANDS)
    assert set(Action) - set(COMMANDS) == NOT_YET


def _type(cli: Cli, action: Action, n: int) -> CompletedProcess[str]:
    return cli.run(*COMMANDS[action].words(n, _topic(cli)))


def _topic(cli: Cli) -> str:
    return f"{cli.environment['SMALL_PREFIX']}.payments"


def _prepare(action: Action, rows: Rows) -> None:
    for statement in filter(None, COMMANDS[action].before.split(";")):
        rows(statement)


async def _tokens(cli: Cli) -> dict[str, str]:
    connection = await asyncpg.connect(cli.environment["TIDEGATE_POSTGRES_DSN"])
    try:
        maker = Actor("tests", Role.ADMIN)
        texts = {name: await create_token(connection, maker, grant) for name, grant in GRANTS.items()}
        await connection.execute("UPDATE tidegate.access_token SET expires_at = now() WHERE name = 'expired'")
        await connection.execute("UPDATE tidegate.access_token SET revoked_at = now() WHERE name = 'revoked'")
    finally:
        await connection.close()
    return texts


async def _begin_positions(cli: Cli) -> None:
    """The ledger stands at the beginning of two partitions of four records; the second has lost its first."""
    topic, kafka = _topic(cli), KafkaSettings(bootstrap=cli.environment["TIDEGATE_KAFKA_BOOTSTRAP"])
    async with open_writer(kafka) as writer:
        assert not any(await writer.write([Outgoing(topic, b"{}", partition=n % 2) for n in range(8)]))
    async with open_reader(kafka) as reader:
        topic_id = await reader.topic_id(topic)
    admin = AIOKafkaAdminClient(bootstrap_servers=kafka.bootstrap)
    await admin.start()
    try:
        await admin.delete_records({ClientPartition(topic, 1): RecordsToDelete(1)})
    finally:
        await admin.close()
    connection = await asyncpg.connect(cli.environment["TIDEGATE_POSTGRES_DSN"])
    try:
        await connection.execute(
            "WITH made AS ("
            "INSERT INTO tidegate.job (service, code, claim_rule) VALUES ($1, 'ledger', $2) RETURNING id) "
            "INSERT INTO tidegate.position (job, topic, partition, next_offset, topic_id) "
            "SELECT made.id, $3, n, 0, $4 FROM made, generate_series(0, 1) AS n",
            cli.environment["SMALL_PREFIX"],
            small.app.job("ledger").claim_rule.spell(),
            topic,
            topic_id,
        )
    finally:
        await connection.close()
