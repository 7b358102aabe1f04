"""What each database role needs of Tidegate's schema, and no more: in one place, for every table and function.

Workers append to the audit through its function alone; they can neither read tokens nor touch a row of the audit, but
for its oldest, past a year at least, through another that leaves a row of it. A
table or function that is missing here fails a test, so a migration that makes one has to say who may use it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from enum import StrEnum
from types import MappingProxyType

import asyncpg

from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.postgres import Connection

_READ = "SELECT"
_ADD = "SELECT, INSERT"
_KEEP = "SELECT, INSERT, UPDATE"
_ALL = "SELECT, INSERT, UPDATE, DELETE"


class Duty(StrEnum):
    """What a role is for."""

    WORKER = "worker"  # `tidegate run`
    COMMAND = "command"  # commands of operators, and backfills: all that a worker may, and more


TABLES: Mapping[str, Mapping[Duty, str]] = MappingProxyType(
    {
        "access_token": {Duty.COMMAND: _KEEP},
        "audit": {Duty.COMMAND: _READ},
        "audit_head": {Duty.COMMAND: _READ},
        "backfill": {Duty.WORKER: _READ, Duty.COMMAND: _KEEP},
        "blocked_key": {Duty.WORKER: _ALL, Duty.COMMAND: _ALL},
        "blocking_letter": {Duty.WORKER: _ALL, Duty.COMMAND: _ALL},
        "checkpoint": {Duty.COMMAND: "SELECT, INSERT, DELETE"},
        "correction": {Duty.WORKER: _READ, Duty.COMMAND: _KEEP},
        "dead_letter": {Duty.WORKER: _KEEP, Duty.COMMAND: _KEEP},
        "dirty": {Duty.WORKER: _ALL, Duty.COMMAND: _ALL},
        "flood_allowance": {Duty.WORKER: _READ, Duty.COMMAND: _KEEP},
        "fold_state": {Duty.WORKER: _KEEP, Duty.COMMAND: _KEEP},
        "inbox": {Duty.WORKER: _ADD, Duty.COMMAND: _ADD},
        "inbox_constant": {},
        "inbox_default": {Duty.WORKER: _READ, Duty.COMMAND: _READ},
        "inbox_late": {},
        "inbox_sweep": {Duty.WORKER: _READ, Duty.COMMAND: _READ},
        "inbox_upkeep": {Duty.WORKER: "SELECT, UPDATE", Duty.COMMAND: "SELECT, UPDATE"},
        "intent": {Duty.WORKER: _ADD, Duty.COMMAND: _KEEP},
        "job": {Duty.WORKER: _KEEP, Duty.COMMAND: _KEEP},
        "job_checkpoint": {Duty.WORKER: _KEEP, Duty.COMMAND: _KEEP},
        "job_clock": {Duty.WORKER: _KEEP, Duty.COMMAND: _KEEP},
        "job_item": {Duty.WORKER: _ALL, Duty.COMMAND: _ALL},
        "job_run": {Duty.WORKER: _ALL, Duty.COMMAND: _ALL},
        "lease": {Duty.WORKER: _KEEP, Duty.COMMAND: _KEEP},
        "migration": {Duty.WORKER: _READ, Duty.COMMAND: _READ},
        "outbox": {Duty.WORKER: _ALL, Duty.COMMAND: _ALL},
        "parked": {Duty.WORKER: _ALL, Duty.COMMAND: _ALL},
        "position": {Duty.WORKER: _KEEP, Duty.COMMAND: _KEEP},
        "presence": {Duty.WORKER: _KEEP, Duty.COMMAND: _KEEP},
        "provider": {Duty.WORKER: _KEEP, Duty.COMMAND: _KEEP},
        "provider_cursor": {Duty.WORKER: _KEEP, Duty.COMMAND: _KEEP},
        "replay": {Duty.WORKER: _READ, Duty.COMMAND: _KEEP},
        "replay_letter": {Duty.WORKER: _READ, Duty.COMMAND: _KEEP},
        "skipped_range": {Duty.WORKER: _READ, Duty.COMMAND: _ADD},
        "user_migration": {Duty.COMMAND: _READ},
        "visible": {Duty.WORKER: _KEEP, Duty.COMMAND: _KEEP},
    }
)
"""Privileges on tables. Days of the inbox are reached through the table that they are parts of."""

FUNCTIONS: frozenset[str] = frozenset(
    {
        "append_audit",
        "attach_inbox_day",
        "drop_decided_letters",
        "drop_inbox_day",
        "empty_inbox_day",
        "forget_audit",
        "sweep_inbox",
        "watch_inbox_day",
    }
)
"""Functions that change something and run as their owner: for both duties, and for nobody who was not granted them."""

HARMLESS_FUNCTIONS: frozenset[str] = frozenset(
    {
        "audit_part",
        "audit_text",
        "database_identity",
        "first_inbox_day",
        "has_blocked_key",
        "inbox_leaf",
        "item_letter_state",
        "note_late_claim",
        "refuse_audit_change",
        "today",
        "token_state",
    }
)
"""Functions that only compute, or that only a trigger calls."""

_FUNCTIONS_FOR = """
    SELECT p.proname, has_function_privilege($1, p.oid, 'EXECUTE') AS may_call
    FROM pg_proc AS p
    WHERE p.pronamespace = 'tidegate'::regnamespace AND p.proname = ANY($2::text[])
"""
_TABLES_THERE = "SELECT tablename FROM pg_tables WHERE schemaname = 'tidegate'"


async def grant(connection: Connection, roles: Mapping[str, Duty]) -> Sequence[str]:
    """Each role has exactly what its duty needs; returns a line for each. What it had of more is taken away.

    Call in a transaction. Raises Misconfigured for a role that does not exist, or from which nothing can be kept.
    """
    for role in roles:
        await _require(connection, role)
    there = {row["tablename"] for row in await connection.fetch(_TABLES_THERE)}
    for role, duty in roles.items():
        quoted = await connection.fetchval("SELECT quote_ident($1)", role)
        for statement in _statements(duty, there):
            await connection.execute(statement.format(role=quoted))
    return [f"role {role} ({duty})" for role, duty in roles.items()]


async def lacking(connection: Connection, roles: Mapping[str, Duty]) -> Sequence[str]:
    """Returns a line for each role that lacks something of what its duty needs. Raises Misconfigured as `grant`."""
    for role in roles:
        await _require(connection, role)
    return [f"role {role} ({duty})" for role, duty in roles.items() if not await _has_all(connection, role, duty)]


def _statements(duty: Duty, tables: Set[str]) -> list[str]:
    """`tables` are the ones there are: those of a later phase get their grants with it."""
    privileges = {table: duties[duty] for table, duties in TABLES.items() if duty in duties and table in tables}
    return [
        "REVOKE ALL ON ALL TABLES IN SCHEMA tidegate FROM {role}",
        "REVOKE ALL ON ALL FUNCTIONS IN SCHEMA tidegate FROM {role}",
        "GRANT USAGE ON SCHEMA tidegate TO {role}",
        *(f"GRANT {granted} ON tidegate.{table} TO {{role}}" for table, granted in privileges.items()),
        *(f"GRANT EXECUTE ON FUNCTION tidegate.{function} TO {{role}}" for function in sorted(FUNCTIONS)),
    ]


async def _require(connection: Connection, role: str) -> None:
    row = await connection.fetchrow(
        """
        SELECT
            quote_ident($1) AS quoted,
            r.oid IS NULL AS is_missing,
            r.rolsuper OR pg_has_role(r.oid, n.nspowner, 'MEMBER') AS is_owner
        FROM pg_namespace AS n
        LEFT JOIN pg_roles AS r ON r.rolname = $1
        WHERE n.nspname = 'tidegate'
        """,
        role,
    )
    if row is None:
        raise Misconfigured("there is no schema 'tidegate' to grant anything on; migrate first")
    if row["is_missing"]:
        raise Misconfigured(f"there is no database role {role!r}; make it first: CREATE ROLE {row['quoted']} LOGIN")
    if row["is_owner"]:
        raise Misconfigured(
            f"role {role!r} is a superuser, or owns Tidegate's schema, so nothing can be kept from it; make another "
            "one for this: CREATE ROLE … LOGIN"
        )


async def _has_all(connection: Connection, role: str, duty: Duty) -> bool:
    try:
        held = [
            await connection.fetchval("SELECT has_table_privilege($1, $2, $3)", role, f"tidegate.{table}", privilege)
            for table, duties in TABLES.items()
            for privilege in duties.get(duty, "").split(", ")
            if privilege
        ]
        usage = await connection.fetchval("SELECT has_schema_privilege($1, 'tidegate', 'USAGE')", role)
        callable_ = await connection.fetch(_FUNCTIONS_FOR, role, sorted(FUNCTIONS))
    except asyncpg.UndefinedTableError:
        return False  # a migration is missing too
    return usage and all(held) and {row["proname"] for row in callable_ if row["may_call"]} == FUNCTIONS
