"""`tidegate dlq` as an operator types it: what failed and why; what was in it only with a token, and audited."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Any

import asyncpg
import pytest

from tests.acceptance.cli import Cli, Worker
from tidegate_kernel.kafka import open_writer
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import Outgoing

pytestmark = [pytest.mark.servers, pytest.mark.timeout(200)]

BINARY = b"\xff\xfe 4111"
REFUSED = b'{"payment": "4111", "cents": -5}'
HOSTILE = b"\x1b[2J"


@pytest.fixture(scope="module")
def failed(admin_cli: Cli) -> Cli:
    """Two records of acme: one that cannot be decoded, one that the business refused. Nothing runs any more."""
    asyncio.run(_produce(admin_cli))
    worker = Worker(admin_cli.start("run", "ledger"))
    seen = 0
    while seen < 2:
        worker.wait_for("dead_letter.kept")
        seen += 1
    assert worker.stop() == 0
    return admin_cli


async def _produce(cli: Cli) -> None:
    topic = f"{cli.environment['SMALL_PREFIX']}.payments"
    told: list[tuple[str, bytes | None]] = [
        ("ce_specversion", b"1.0"),
        ("ce_source", b"/web"),
        ("ce_type", b"payment.made"),
        ("ce_tenantid", b"acme"),
    ]
    told += [("secret", b"4111"), ("secret", None), ("agent", HOSTILE)]
    records = [
        Outgoing(topic, value, key, [*told, ("ce_id", name)], partition=0)  # of one key the second would be parked
        for name, key, value in ((b"e1", b"\xffk-4111", BINARY), (b"e2", b"\xffk-4111-b", REFUSED))
    ]
    async with open_writer(KafkaSettings(bootstrap=cli.environment["TIDEGATE_KAFKA_BOOTSTRAP"])) as writer:
        assert not any(await writer.write(records))


def _letters(cli: Cli, *options: str) -> list[dict[str, Any]]:
    letters: list[dict[str, Any]] = cli.json("dlq", "list", *options)["letters"]
    return letters


def test_list_and_stats_tell_what_failed_and_nothing_of_what_was_in_it(failed: Cli) -> None:
    """Whoever is on call needs the kind, the place and the next command; whose card it was is nobody's business."""
    listed = failed.run("dlq", "list", "--tenant", "acme")
    as_json = failed.run("dlq", "list", "--json")
    stats = failed.run("dlq", "stats")

    assert (listed.returncode, as_json.returncode, stats.returncode) == (0, 0, 0), listed.stderr
    assert "4111" not in f"{listed.stdout}{as_json.stdout}{stats.stdout}"
    assert "undecodable" in listed.stdout
    assert "tidegate dlq show LETTER" in listed.stderr
    assert "2 letters in 2 groups" in stats.stderr
    letters = _letters(failed)
    assert {each["reason"] for each in letters} == {"undecodable", "rejected"}
    assert all(failed.run(*each["next"].split()[1:]).returncode == 0 for each in letters)


def test_pages_follow_one_another(failed: Cli) -> None:
    """The place of the next page is what the last one printed, as it stands."""
    first = failed.json("dlq", "list", "--limit", "1")
    second = failed.json("dlq", "list", "--limit", "1", "--after", first["after"])

    assert second["after"] is None
    assert first["letters"] + second["letters"] == _letters(failed)
    assert first["letters"] != second["letters"]


@pytest.mark.parametrize("command", ["list", "stats", "runs"])
def test_a_misspelt_job_is_told(failed: Cli, command: str) -> None:
    """An empty table must not look like good news. No misuse: letters of a job that is gone are still shown."""
    done = failed.run("dlq", command, "--job", "legder")

    assert done.returncode == 0
    assert "has no job 'legder' today; its jobs: ledger, search" in done.stderr


def test_a_database_that_is_away_is_no_misuse(failed: Cli) -> None:
    """A script that types the same words again does right, so the exit code must not say that they are wrong."""
    done = failed.run("dlq", "list", TIDEGATE_POSTGRES_DSN="postgresql://anna:secret@127.0.0.1:1/shop")

    assert (done.returncode, "postgres at 127.0.0.1:1/shop cannot be reached" in done.stderr) == (1, True), done.stderr
    assert "secret" not in done.stderr


def test_a_group_of_stats_is_a_filter_of_the_list(failed: Cli) -> None:
    """From the number to the letters behind it without a third tool."""
    groups = failed.json("dlq", "stats")["groups"]
    assert len(groups) == 2
    for group in groups:
        letters = _letters(failed, "--fingerprint", group["fingerprint"], "--reason", group["reason"])
        assert [each["id"] for each in letters] == [group["sample"]]


def test_show_tells_all_but_the_payload(failed: Cli) -> None:
    """Names of headers tell what kind of record it was; their values, the key and the value may be personal."""
    letter = _letters(failed, "--reason", "undecodable")[0]["id"]

    done = failed.run("dlq", "show", letter)

    assert done.returncode == 0, done.stderr
    assert "4111" not in done.stdout
    told_of_it = ("secret: not shown", "attempts:", "stack:", "topic id", "handler:        decode")
    for told in (*told_of_it, "tidegate dlq replay"):
        assert told in done.stdout, told
    assert f"{len(BINARY)} bytes, not shown" in done.stdout


def test_payload_is_shown_byte_for_byte_and_audited(failed: Cli, rows: Callable[[str], list[asyncpg.Record]]) -> None:
    """What is no text is said to be base64; what is text cannot command the terminal."""
    binary, refused = (_letters(failed, "--reason", reason)[0]["id"] for reason in ("undecodable", "rejected"))

    payload = failed.json("dlq", "show", binary, "--payload")["payload"]
    told = failed.run("dlq", "show", refused, "--payload")

    assert payload["value"] == {"encoding": "base64", "text": base64.b64encode(BINARY).decode()}
    assert payload["key"] == {"encoding": "base64", "text": base64.b64encode(b"\xffk-4111").decode()}
    secrets = [each["value"] for each in payload["headers"] if each["name"]["text"] == "secret"]
    assert secrets == [{"encoding": "utf-8", "text": "4111"}, None]
    assert f"value:          {REFUSED.decode()}" in told.stdout
    assert "\x1b" not in told.stdout
    assert "agent: \\x1b[2J" in told.stdout
    audited = rows(
        "SELECT target FROM tidegate.audit WHERE action = 'dlq:read-payload' AND outcome = 'done' ORDER BY seq"
    )
    assert [row["target"] for row in audited] == [f"letter {binary}", f"letter {refused}"]


def test_payload_without_a_token_is_refused(failed: Cli) -> None:
    """Exit 3, and not a byte of it."""
    letter = _letters(failed)[0]["id"]

    done = failed.run("dlq", "show", letter, "--payload", TIDEGATE_TOKEN="")

    assert done.returncode == 3
    assert "TIDEGATE_TOKEN" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("list", "--status", "gone"), "none of: any, dead"),
        (("list", "--after", "page 2"), "take it from the page before"),
        (("list", "--since", "yesterday"), "--since 'yesterday'"),
        (("stats", "--since", "yesterday"), "as 24h for a day ago"),
        (("list", "--since", "1h", "--until", "24h"), "nothing lies between them"),
        (("show", "17"), "no letter's id"),
        (("show", "00000000-0000-0000-0000-00000000ffff"), "has no dead letter"),
    ],
)
def test_wrong_question_names_the_form(failed: Cli, arguments: tuple[str, ...], words: str) -> None:
    """Exit 2: the question was wrong, whatever there is to find."""
    done = failed.run("dlq", *arguments)

    assert done.returncode == 2
    assert words in done.stderr
