"""`tidegate dlq replay` and `discard` as operators type them: plan, run, report; refused, in conflict, quarantined."""

from __future__ import annotations

import asyncio
import json
import re
import shlex
from collections.abc import Iterator

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.acceptance.cli import Cli
from tests.acceptance.letters import Letters, Rows, produce, run_ledger, topic_of

pytestmark = [pytest.mark.servers, pytest.mark.timeout(240)]

MENDED = {"TIDEGATE_APP": "mended:app"}
WHY = ("--reason", "mended in 4.2", "--yes")


@pytest.fixture(scope="module")
def failed(admin_cli: Cli) -> Cli:
    """Of key k the first payment was refused, the second waits behind it. Nothing runs any more."""
    produce(admin_cli, ("k", "first", -5), ("k", "second", 7))
    run_ledger(admin_cli, "dead_letter.kept")
    return admin_cli


@pytest.fixture(scope="module")
def bearers(failed: Cli) -> Iterator[dict[str, Cli]]:
    """Others who may type: their tokens by name."""
    made: dict[str, Cli] = {}
    for name, *more in (("anna", "operator"), ("bert", "operator"), ("viola", "viewer"), ("acme", "operator", "acme")):
        scope = ("--tenant", more[1]) if more[1:] else ()
        token = failed.run("tokens", "create", name, "--role", more[0], *scope).stdout.strip()
        made[name] = Cli({**failed.environment, "TIDEGATE_TOKEN": token})
    yield made
    for each in made.values():
        each.close()


@pytest.fixture
def letters(failed: Cli, rows: Rows) -> Letters:
    """No letters but those that a test keeps."""
    rows("UPDATE tidegate.dead_letter SET state = 'resolved' WHERE state <> 'resolved' AND \"offset\" >= 1000")
    return Letters(failed)


def paid(rows: Rows) -> dict[str, int]:
    return {row["id"]: row["cents"] for row in rows("SELECT id, cents FROM payment")}


def audited(rows: Rows, count: int) -> list[tuple[str, str, str]]:
    """The newest rows about letters, oldest first."""
    found = rows(f"SELECT * FROM (SELECT seq, actor, action, outcome FROM tidegate.audit WHERE action LIKE 'dlq:%' "
                 f"ORDER BY seq DESC LIMIT {count}) AS newest ORDER BY seq")  # fmt: skip
    return [(row["actor"], row["action"], row["outcome"]) for row in found]


async def _instruction(cli: Cli) -> str:
    """What the header of the record in the DLQ topic says."""
    topic = f"{cli.environment['SMALL_PREFIX']}.ledger.dlq"
    consumer = AIOKafkaConsumer(
        topic, bootstrap_servers=cli.environment["TIDEGATE_KAFKA_BOOTSTRAP"], auto_offset_reset="earliest"
    )
    await consumer.start()
    try:
        record = await asyncio.wait_for(consumer.getone(), timeout=30)
    finally:
        await consumer.stop()
    headers: dict[str, bytes] = dict(record.headers)
    return headers["tg-dlq-replay-instruction"].decode()


async def _end_of(cli: Cli) -> int:
    consumer = AIOKafkaConsumer(bootstrap_servers=cli.environment["TIDEGATE_KAFKA_BOOTSTRAP"])
    await consumer.start()
    try:
        await consumer._client.set_topics([topic_of(cli)])
        partitions = [TopicPartition(topic_of(cli), number) for number in (0, 1)]
        return sum((await consumer.end_offsets(partitions)).values())
    finally:
        await consumer.stop()


def test_the_instruction_of_a_letter_works_when_pasted(failed: Cli, rows: Rows) -> None:
    """Cases 56 and 57: from the header to the effect with nothing but a reason filled in. The job's own code handles
    the letter and what waited behind it, in order; nothing goes through the topic, where other groups would see it."""
    before = asyncio.run(_end_of(failed))
    pasted = shlex.split(asyncio.run(_instruction(failed)).replace("…", "mended in 4.2"))
    assert pasted[:3] == ["tidegate", "dlq", "replay"]

    plan = failed.run(*pasted[1:], **MENDED)

    assert plan.returncode == 0, plan.stderr
    assert "replay of 1 letter of job 'ledger'" in plan.stdout
    assert "1 event parked behind these letters will be handled too" in plan.stdout
    assert (paid(rows), rows("SELECT 1 FROM tidegate.replay")) == ({}, [])
    assert "1 event of its key waits behind it" in failed.run("dlq", "show", pasted[4]).stdout

    (_, command) = plan.stderr.split("to do it: ")
    done = failed.run(*shlex.split(command)[1:], **MENDED)

    assert done.returncode == 0, done.stderr
    assert "1 resolved" in done.stdout
    assert "1 parked event taken up" in done.stdout
    assert "replay: 1 of 1 letters" in done.stderr
    assert paid(rows) == {"first": -5, "second": 7}
    assert [row["state"] for row in rows("SELECT state FROM tidegate.dead_letter")] == ["resolved"]
    assert rows("SELECT 1 FROM tidegate.blocked_key") == []
    assert asyncio.run(_end_of(failed)) == before
    [row] = rows("SELECT * FROM tidegate.audit WHERE action = 'dlq:replay'")
    told = json.loads(row["parameters"])
    assert (row["outcome"], row["reason"], row["tenant"]) == ("done", "mended in 4.2", "acme")
    assert (told["letters"], told["run"], told["where"]["letters"]) == (1, 1, [pasted[4]])

    again = failed.run(*pasted[1:], "--yes", **MENDED)

    assert (again.returncode, paid(rows)) == (0, {"first": -5, "second": 7}), again.stderr
    assert "there is nothing to be done" in again.stderr


def test_an_instruction_pasted_as_it_stands_is_refused_for_want_of_a_reason(letters: Letters) -> None:
    """The dots are not why anybody did it."""
    [letter] = letters.keep("dots")

    done = letters.cli.run("dlq", "replay", "--letter", letter, "--reason", "…", "--yes", **MENDED)

    assert done.returncode == 3, done.stderr
    assert "without a reason" in done.stderr


def test_the_report_adds_up_and_says_what_failed_how(letters: Letters, rows: Rows) -> None:
    """Case 61: replayed, failed and left sum to what was asked for; exit 1 says that somebody has to look again."""
    letters.keep(*(f"sum-{n}" for n in range(10)))
    words = ("--job", "ledger", "--fingerprint", "f", "--failed-for", "rejected", "--tenant", "acme")

    done = letters.cli.run("dlq", "replay", *words, *WHY, "--json", MENDED_REFUSED="sum-3,sum-7", **MENDED)

    assert done.returncode == 1, done.stderr
    told = json.loads(done.stdout)
    assert told["run"]["outcomes"] == {"resolved": 8, "failed": 2}
    assert (told["run"]["letters"], told["run"]["undecided"], told["is_done"]) == (10, 0, False)
    [group] = told["run"]["failures"]
    assert (group["reason"], group["letters"]) == ("rejected", 2)
    assert {name for name in paid(rows) if name.startswith("sum")} == {f"sum-{n}" for n in range(10)} - {
        "sum-3",
        "sum-7",
    }
    as_text = letters.cli.run("dlq", "runs", "--run", str(told["run"]["id"]))
    assert "8 resolved" in as_text.stdout
    assert "2 failed again" in as_text.stdout
    assert "asked for by tests" in as_text.stdout
    logged = [json.loads(line) for line in done.stderr.splitlines() if line.startswith("{")]
    assert [line["event"] for line in logged] == ["replay.started", "replay.batch", "replay.finished"]


def test_two_who_press_at_once_are_one_run_and_one_conflict(
    letters: Letters, bearers: dict[str, Cli], rows: Rows
) -> None:
    """Case 58: both attempts are in the audit with their actors, the effect happens once."""
    letters.keep("twice")
    slow = MENDED | {"MENDED_SLOWNESS_SECONDS": "8"}
    running = {name: bearers[name].start("dlq", "replay", *letters.named(), *WHY, **slow) for name in ("anna", "bert")}

    ends = {name: (process.communicate(timeout=100), process.returncode) for name, process in running.items()}

    assert sorted(code for _, code in ends.values()) == [0, 1], ends
    (loser,) = [name for name, (_, code) in ends.items() if code == 1]
    assert re.search(r"run \d+", ends[loser][0][1]), ends
    assert paid(rows)["twice"] == -5
    assert sorted(audited(rows, 2)) == sorted(
        (name, "dlq:replay", "failed" if name == loser else "done") for name in ("anna", "bert")
    )


def _fingerprint(rows: Rows, letters: Letters) -> str:
    (told,) = rows(f"SELECT fingerprint FROM tidegate.dead_letter WHERE id = '{letters.kept[0]}'")
    return str(told[0])


def test_a_letter_that_keeps_failing_is_quarantined_until_somebody_forces_it(letters: Letters, rows: Rows) -> None:
    """Case 54: poison does not go round for ever. The next try is refused, and a forced one has a reason."""
    letters.keep("poison")
    once = {"TIDEGATE_MAX_REPLAYS": "1"}

    first = letters.cli.run("dlq", "replay", *letters.named(), *WHY, **once)
    second = letters.cli.run("dlq", "replay", *letters.named(), *WHY, **once)
    unexplained = letters.cli.run("dlq", "replay", *letters.named(), "--force", "--yes", **once)

    assert (first.returncode, second.returncode, unexplained.returncode) == (1, 1, 3), second.stderr
    assert "1 failed again" in first.stdout
    assert "quarantined" in second.stderr
    assert "--force" in second.stderr
    assert audited(rows, 2) == [("tests", "dlq:replay", "failed"), ("tests", "dlq:replay", "denied")]
    assert "poison" not in paid(rows)
    rehearsed = letters.cli.run("dlq", "replay", *letters.named(), "--force", "--rehearse", **once)
    assert rehearsed.stderr.rstrip().endswith("--force"), "the plan that it names would have no letter without it"
    for command in ("list", "stats"):
        of_its_kind = letters.cli.run("dlq", command, "--fingerprint", _fingerprint(rows, letters))
        assert "1 more of that kind is quarantined or being replayed: --status quarantined" in of_its_kind.stderr
        asked_for = letters.cli.run("dlq", command, "--status", "dead")
        assert "more of that kind" not in asked_for.stderr

    forced = letters.cli.run("dlq", "replay", *letters.named(), "--force", *WHY, **once, **MENDED)

    assert forced.returncode == 0, forced.stderr
    assert paid(rows)["poison"] == -5


def test_who_may_not_replay_is_refused_and_audited(letters: Letters, bearers: dict[str, Cli], rows: Rows) -> None:
    """Case 61, and G12 for hands: without permission nothing happens, and a row says who tried."""
    own, foreign = letters.keep("acmes")[0], letters.keep("zetas", tenant="zeta")[0]

    viewer = bearers["viola"].run("dlq", "replay", "--letter", own, *WHY, **MENDED)
    both = bearers["acme"].run("dlq", "replay", "--letter", own, "--letter", foreign, *WHY, **MENDED)
    theirs = bearers["acme"].run("dlq", "replay", "--letter", foreign, *WHY, **MENDED)
    discarding = bearers["anna"].run("dlq", "discard", "--letter", own, *WHY, **MENDED)

    ends = (viewer, both, theirs, discarding)
    assert [done.returncode for done in ends] == [3, 3, 3, 3], [done.stderr for done in ends]
    assert "limited to tenants acme" in theirs.stderr
    assert "take a token that covers it ('tidegate tokens create NAME --role operator')" in theirs.stderr
    assert "a token with role admin" in discarding.stderr
    assert audited(rows, 4) == [
        ("viola", "dlq:replay", "denied"),
        ("acme", "dlq:replay", "denied"),
        ("acme", "dlq:replay", "denied"),
        ("anna", "dlq:discard", "denied"),
    ]
    assert not {"acmes", "zetas"} & set(paid(rows))

    allowed = bearers["acme"].run("dlq", "replay", "--letter", own, *WHY, **MENDED)

    assert allowed.returncode == 0, allowed.stderr
    assert set(paid(rows)) & {"acmes", "zetas"} == {"acmes"}


def test_a_plan_that_is_no_longer_true_is_not_run(letters: Letters, rows: Rows) -> None:
    """What somebody agreed to is what he was shown, not what has come in since."""
    letters.keep("shown")
    words = ("--job", "ledger", "--fingerprint", "f")
    digest = letters.cli.json("dlq", "replay", *words)["digest"]
    letters.keep("came-later")

    changed = letters.cli.run("dlq", "replay", *words, "--digest", digest, *WHY, **MENDED)

    assert changed.returncode == 1, changed.stderr
    assert "look at the plan again" in changed.stderr
    assert not {"shown", "came-later"} & set(paid(rows))


def test_a_discarded_letter_acts_never_and_what_waited_goes_on(letters: Letters, rows: Rows) -> None:
    """The record is passed by for ever; it is an admin's decision, with a reason that stays beside it."""
    letters.keep("nothing")
    plan = letters.cli.run("dlq", "discard", *letters.named())
    assert "discard of 1 letter" in plan.stdout

    done = letters.cli.run("dlq", "discard", *letters.named(), "--reason", "test traffic", "--yes", **MENDED)

    assert done.returncode == 0, done.stderr
    assert "1 discarded" in done.stdout
    assert "nothing" not in paid(rows)
    [kept] = rows("SELECT kind, reason, made_by FROM tidegate.correction")
    assert tuple(kept) == ("discard", "test traffic", "tests")
    assert audited(rows, 1) == [("tests", "dlq:discard", "done")]


def test_a_replay_in_a_paused_job_is_done_and_says_so(letters: Letters, rows: Rows) -> None:
    """Whoever paused the live consumer may be mending just this; whoever replays is told what he passes by."""
    letters.keep("paused")
    assert letters.cli.run("pause", "ledger", "--reason", "bad release").returncode == 0

    done = letters.cli.run("dlq", "replay", *letters.named(), *WHY, **MENDED)

    assert letters.cli.run("resume", "ledger").returncode == 0
    assert done.returncode == 0, done.stderr
    assert "bad release" in done.stderr
    assert "this run goes on" in done.stderr
    assert paid(rows)["paused"] == -5


@pytest.mark.parametrize(
    "words, told",
    [
        ((), "say which letters"),
        (("--letter", "17"), "no letter's id"),
        (("--letter", "00000000-0000-0000-0000-00000000ffff"), "no dead letter"),
        (("--tenant", "acme"), "say which job with --job"),
        (("--job", "nothing"), "nothing"),
        (("--job", "ledger", "--status", "resolved"), "decided"),
        (("--job", "ledger", "--status", "gone"), "none of"),
        (("--letter", "00000000-0000-0000-0000-00000000ffff", "--type", "x"), "one or the other"),
        (("--resume", "4711"), "no run 4711"),
        (("--resume", "1", "--job", "ledger"), "as it is"),
        (("--from-topic", "--type", "x"), "--from-topic needs --job"),
    ],
)
def test_wrong_words_are_told_and_do_nothing(failed: Cli, words: tuple[str, ...], told: str) -> None:
    """Exit 2: the question was wrong."""
    done = failed.run("dlq", "replay", *words, "--reason", "tests", "--yes")

    assert done.returncode == 2, done.stderr
    assert told in done.stderr
