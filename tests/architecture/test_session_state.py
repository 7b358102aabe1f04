"""Nothing is left on a connection for a later transaction: behind a pooler that gets another server connection."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.architecture.source import PACKAGES, ROOT, walk

_OF_A_SESSION = re.compile(
    r"""
    \bpg_(try_)?advisory_(lock|unlock)   # a lock that outlives its transaction
    | \bCREATE\ +(LOCAL\ +)?TEMP
    | \bWITH\ +HOLD\b
    | (^|;)\s*(LISTEN|UNLISTEN|PREPARE|DEALLOCATE|DISCARD)\ +\w
    | (^|;)\s*SET\ +(?!LOCAL\b|CONSTRAINTS\b|TRANSACTION\b)\w+\ *(=|TO\b)
    | \bset_config\([^()]*,\s*false\s*\)
    """,
    re.VERBOSE | re.MULTILINE,
)


@pytest.mark.parametrize(
    "statement, is_of_a_session",
    [
        ("SELECT pg_advisory_lock(1)", True),
        ("SELECT pg_try_advisory_xact_lock($1)", False),
        ("SET search_path = public", True),
        ("BEGIN; SET statement_timeout TO 5", True),
        ("SET LOCAL lock_timeout = '10s'", False),
        ("UPDATE t\nSET a = 1", False),
        ("SELECT set_config('a', 'b', false)", True),
        ("SELECT set_config('a', 'b', true)", False),
        ("LISTEN work", True),
        ("CREATE TEMP TABLE t ()", True),
    ],
)
def test_what_belongs_to_a_session_is_recognized(statement: str, is_of_a_session: bool) -> None:
    """The next test is only as good as this."""
    assert bool(_OF_A_SESSION.search(_without_clauses(statement))) is is_of_a_session


def test_no_statement_leaves_anything_in_its_session() -> None:
    """Case 115: a session's lock is taken on one server connection and released on another, which says false and
    leaves it held for ever; a session's setting is the next client's surprise."""
    texts = {file.relative_to(ROOT).as_posix(): _sql(file.read_text("utf-8")) for file in _sql_files()}
    texts |= {
        each.place: each.node.value
        for each in walk(*PACKAGES)
        if isinstance(each.node, ast.Constant) and isinstance(each.node.value, str)
    }

    left = {place for place, text in texts.items() if _OF_A_SESSION.search(_without_clauses(text))}

    # The local ClickHouse's engine is a library in one process, with no session at all.
    assert {place for place in left if not place.startswith("tidegate/stack/clickhouse_front.py")} == set()
    assert any("pg_try_advisory_xact_lock" in text for text in texts.values()), "the search finds what is there"


def _sql_files() -> list[Path]:
    return sorted(file for name in PACKAGES for file in (ROOT / name).rglob("*.sql"))


def _sql(text: str) -> str:
    return re.sub(r"--[^\n]*", "", text)


def _without_clauses(text: str) -> str:
    """SET is also a clause of UPDATE, and of a function's definition, where it holds for the function's call only."""
    text = re.sub(r"\bUPDATE\b[^;]*?\bSET\b", "UPDATE", text, flags=re.DOTALL)
    return re.sub(r"\b(LANGUAGE|SECURITY|STABLE|VOLATILE)\b[^;$]*", "", text)
