"""How each action is typed, and what has to be there for it to succeed.

An action that gets its command gets its row here; until then it stands in NOT_YET. `test_command_permissions.py` types
each row as every kind of bearer.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate_kernel.permissions import Action


@dataclass(frozen=True)
class Typed:
    """A command line; {n} differs for each bearer, {topic} is the service's. `before` is SQL that makes it possible."""

    command: str
    before: str = ""

    def words(self, n: int, topic: str) -> list[str]:
        return [word.format(n=n, topic=topic) for word in self.command.split()]


_LEDGER = "(SELECT id FROM tidegate.job WHERE code = 'ledger')"
_INTERRUPTED_BACKFILL = (
    "INSERT INTO tidegate.backfill (job, source, holder, lease_until) "
    f"VALUES ({_LEDGER}, 'beginning', 'gone', now() - interval '1 minute') ON CONFLICT DO NOTHING"
)
_PAUSED = (
    "INSERT INTO tidegate.intent (kind, job, reason, actor) "
    f"SELECT 'pause', {_LEDGER}, 'for the test', 'tests' WHERE NOT EXISTS (SELECT FROM tidegate.intent "
    f"WHERE job = {_LEDGER} AND kind = 'pause' AND topic IS NULL AND ended_at IS NULL);"
)
_SEARCH_PAUSED = (
    "INSERT INTO tidegate.intent (kind, job, reason, actor) "
    "SELECT 'pause', j.id, 'for the test', 'tests' FROM tidegate.job AS j WHERE j.code = 'search'"
)
_FLOODED = (
    "INSERT INTO tidegate.intent (kind, job, topic, reason, actor) "
    f"SELECT 'flood', {_LEDGER}, p.topic, 'too many', 'tidegate' FROM tidegate.position AS p "
    f"WHERE p.job = {_LEDGER} AND p.partition = 0 AND p.run = 0 AND NOT EXISTS (SELECT FROM tidegate.intent "
    "WHERE kind = 'flood' AND ended_at IS NULL)"
)
LETTER = "00000000-0000-0000-0000-000000000001"
_FAILED = (
    'INSERT INTO tidegate.dead_letter (id, job, topic, topic_id, partition, "offset", value, reason, error_class, '
    "error_message, fingerprint, attempts) "
    f"VALUES ('{LETTER}', {_LEDGER}, 't', gen_random_uuid(), 0, 1, 'x', 'rejected', 'Rejected', 'no', 'f', 1) "
    "ON CONFLICT DO NOTHING"
)
# A payment that the ledger takes today, dead for whatever reason.
_ENVELOPE = {"specversion": "1.0", "source": "/web", "type": "payment.made"}
_NAMES = ", ".join(f"'ce_{name}'::bytea" for name in ("id", *_ENVELOPE))
_VALUES = ", ".join(f"'{value}'::bytea" for value in _ENVELOPE.values())
_MENDED = (
    'INSERT INTO tidegate.dead_letter (id, job, topic, topic_id, partition, "offset", value, header_names, '
    "header_values, reason, error_class, error_message, fingerprint, attempts) "
    "SELECT n.id, p.job, p.topic, p.topic_id, 0, 1000 + (random() * 1000000000)::bigint, "
    "convert_to(json_build_object('payment', n.id, 'cents', 1)::text, 'UTF8'), "
    f"ARRAY[{_NAMES}], ARRAY[convert_to(n.id::text, 'UTF8'), {_VALUES}], 'rejected', 'Rejected', 'no', 'mended', 1 "
    "FROM tidegate.position AS p, (SELECT gen_random_uuid() AS id) AS n "
    f"WHERE p.job = {_LEDGER} AND p.partition = 0 AND p.run = 0"
)

_RUN_DUE = (
    "INSERT INTO tidegate.job (service, code, generation, claim_rule) SELECT service || '-clock', 'asked', 1, 'clock' "
    "FROM tidegate.job WHERE code = 'ledger' ON CONFLICT DO NOTHING; "
    "INSERT INTO tidegate.job_run (id, job, tenant, scheduled_at, due_at, trigger, lock_name) OVERRIDING SYSTEM VALUE "
    "SELECT 4242, id, 'zeta', now(), now(), 'manual', 'asked' FROM tidegate.job WHERE code = 'asked' "
    "ON CONFLICT (id) DO UPDATE SET state = 'due'"
)

COMMANDS: dict[Action, Typed] = {
    Action.JOB_PAUSE: Typed("pause search --reason tests"),
    Action.JOB_RESUME: Typed("resume search"),
    Action.CHECKPOINT_CREATE: Typed("checkpoint create c{n} --at beginning"),
    Action.CHECKPOINT_DELETE: Typed(
        "checkpoint delete gone --yes",
        "INSERT INTO tidegate.checkpoint VALUES ('gone', 't', 0, gen_random_uuid(), 0) ON CONFLICT DO NOTHING",
    ),
    Action.BACKFILL_START: Typed(
        "run ledger --backfill --from-beginning --accept-gap",
        "UPDATE tidegate.backfill SET state = 'done' WHERE state = 'running'",
    ),
    Action.BACKFILL_ABANDON: Typed(
        "run ledger --backfill --from-beginning --accept-gap --abandon", _INTERRUPTED_BACKFILL
    ),
    Action.OFFSETS_SET: Typed("offsets set ledger {topic}:0 --to 3 --reason tests --yes", _PAUSED),
    Action.OFFSETS_SKIP: Typed(
        "offsets skip ledger {topic}:0 --to 2 --reason tests --yes",
        _PAUSED + "UPDATE tidegate.position SET next_offset = 0 WHERE partition = 0 AND run = 0",
    ),
    Action.OFFSETS_ACCEPT_GAP: Typed(
        "offsets accept-gap ledger {topic}:1 --reason tests --yes",
        _PAUSED + "UPDATE tidegate.position SET next_offset = 0 WHERE partition = 1 AND run = 0",
    ),
    Action.OFFSETS_ADOPT: Typed(
        "offsets adopt ledger {topic}:0 --reason tests --yes",
        _PAUSED + "UPDATE tidegate.position SET topic_id = gen_random_uuid() WHERE partition = 0 AND run = 0",
    ),
    Action.FLOOD_RELEASE: Typed("flood release ledger --until-end --reason tests --yes", _FLOODED),
    Action.PROJECTION_RESET: Typed("projections reset search --accept-gap --reason tests --yes", _SEARCH_PAUSED),
    Action.PROJECTION_RERENDER: Typed(
        "projections rerender totals --app folding:app --reason tests --yes",
        "INSERT INTO tidegate.job (service, code, generation, claim_rule) SELECT service || '-folding', 'totals', 1, "
        "claim_rule FROM tidegate.job WHERE code = 'ledger' ON CONFLICT DO NOTHING",
    ),
    Action.RUN_TRIGGER: Typed("jobs run asked --app clocked:app --tenant zeta"),
    Action.RUN_CANCEL: Typed("jobs cancel 4242 --app clocked:app", _RUN_DUE),
    Action.DLQ_READ_PAYLOAD: Typed(f"dlq show {LETTER} --payload", _FAILED),
    Action.DLQ_REPLAY: Typed("dlq replay --job ledger --fingerprint mended --reason tests --yes", _MENDED),
    Action.DLQ_DISCARD: Typed("dlq discard --job ledger --fingerprint mended --reason tests --yes", _MENDED),
    Action.DLQ_IMPORT: Typed("dlq import ledger --yes"),
    Action.DLQ_EDIT: Typed(f"dlq edit {LETTER} --value-file small.py --reason tests --yes", _FAILED),
    Action.DLQ_ERASE: Typed("dlq erase --key nobody --reason tests --yes"),
    Action.TOKEN_CREATE: Typed("tokens create made-{n} --role viewer"),
    Action.TOKEN_REVOKE: Typed(
        "tokens revoke unwanted --reason tests --yes",
        "INSERT INTO tidegate.access_token (name, role, sha256, created_by) SELECT 'unwanted', 'viewer', "
        "sha256(gen_random_uuid()::text::bytea), 'tests' WHERE NOT EXISTS "
        "(SELECT FROM tidegate.access_token WHERE name = 'unwanted' AND revoked_at IS NULL)",
    ),
}

NOT_YET = frozenset(
    {
        Action.REBUILD_START,
        Action.REBUILD_SWAP,
        Action.REBUILD_ABANDON,
    }
)
"""Actions that no command does so far."""
