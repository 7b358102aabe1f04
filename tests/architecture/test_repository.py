"""What belongs to this machine, its network or its user stays out of the repository."""

from __future__ import annotations

import re
from pathlib import Path

from tests.architecture.source import ROOT, tracked_files

# Spelled in parts, so that this file does not find itself.
_MACHINE = re.compile("|".join(["/" + "work/", "/" + "root/", "/" + r"home/\w", "/" + r"Users/\w", r"C:\\" + "Users"]))
_REGISTRY = re.compile(
    r"https?://[\w.@:-]*(pypi|pythonhosted|artifactory|nexus|npmjs|registry\.|repo\.maven|maven\.org|mirror)[\w.-]*"
    r"|^\s*-{1,2}(index-url|extra-index-url|find-links|trusted-host|i|f)\b",
    re.IGNORECASE | re.MULTILINE,
)
_SECRET = re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----|\bAKIA[0-9A-Z]{16}\b|\bghp_[A-Za-z0-9]{36}\b")


def _texts() -> list[tuple[str, str]]:
    texts = []
    for file in tracked_files():
        try:
            texts.append((file.relative_to(ROOT).as_posix(), file.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return texts


def _lines_with(pattern: re.Pattern[str]) -> list[str]:
    return [
        f"{name}:{text.count(chr(10), 0, match.start()) + 1}: {match.group()}"
        for name, text in _texts()
        for match in pattern.finditer(text)
        if name != Path(__file__).relative_to(ROOT).as_posix()
    ]


def test_no_path_of_a_machine() -> None:
    """A path that exists on one machine only breaks on the next, and says who wrote it where."""
    assert _lines_with(_MACHINE) == []
    assert len(_texts()) > 100, "the files were not found"


def test_no_registry_is_named() -> None:
    """Packages come from wherever the machine's own settings say; a host in a lock file is wrong behind a mirror."""
    assert _lines_with(_REGISTRY) == []


def test_no_secret_is_kept() -> None:
    """Keys of tests are made when the tests run."""
    assert _lines_with(_SECRET) == []


def test_files_are_small_and_end_with_a_line() -> None:
    """Large files and generated ones do not belong here; a missing last line end makes every later diff larger."""
    sources = [file for file in tracked_files() if file.suffix in {".py", ".sql", ".md", ".toml", ".yaml", ".java"}]

    endless = [
        str(file.relative_to(ROOT)) for file in sources if file.stat().st_size and file.read_bytes()[-1:] != b"\n"
    ]
    large = [str(file.relative_to(ROOT)) for file in tracked_files() if file.stat().st_size > 2_000_000]

    assert endless == []
    assert large == []


def test_tests_are_no_packages() -> None:
    """Folders of tests and packages share names: an __init__.py below tests/ would shadow one with the other."""
    assert list((ROOT / "tests").rglob("__init__.py")) == []
