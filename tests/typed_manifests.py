"""Commands of `tidegate k8s`, typed in this process: what they print, or why they refuse."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import dataclass
from typing import Any

import pytest

from tidegate.commands.face import run_command_line


@dataclass(frozen=True)
class Typed:
    """Types `tidegate k8s job …` with no variable of this machine's."""

    monkeypatch: pytest.MonkeyPatch
    capsys: pytest.CaptureFixture[str]

    def job(self, *words: str, stdin: str = "") -> tuple[str, str]:
        """What it prints and what it says beside; it must succeed."""
        code, out, said = self._end(words, stdin)
        assert code == 0, said
        return out, said

    def manifest(self, *words: str, stdin: str = "") -> dict[str, Any]:
        kind, *rest = words
        found: dict[str, Any] = json.loads(self.job(kind, "--json", *rest, stdin=stdin)[0])
        return found

    def refusal(self, *words: str, stdin: str = "") -> str:
        """Why it refuses these words: a misuse, of which nothing gets into a pipe."""
        code, out, said = self._end(words, stdin)
        assert (code, out) == (2, ""), said
        return said

    def _end(self, words: tuple[str, ...], stdin: str) -> tuple[int, str, str]:
        self.monkeypatch.setattr(sys, "argv", ["tidegate", "k8s", "job", *words])
        self.monkeypatch.setattr(sys, "stdin", io.StringIO(stdin))
        with pytest.raises(SystemExit) as ended:
            run_command_line()
        told = self.capsys.readouterr()
        assert isinstance(ended.value.code, int)
        return ended.value.code, told.out, told.err
