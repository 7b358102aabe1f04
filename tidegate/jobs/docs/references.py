"""Which documents of a repository name a job."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path

GENERATED = "<!-- tidegate jobs docs"
"""What a document begins with that was written by us: it refers to nothing by itself."""

_NOT_THEIRS = frozenset({"node_modules", "site-packages", "dist", "build"})


def repository_files(root: Path, suffix: str) -> Sequence[Path]:
    """Returns the files below `root` that end with `suffix`: those that git tracks, without git all but hidden ones."""
    command = ["git", "ls-files", "-z", "--", f"*{suffix}"]
    try:
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    except OSError:
        return sorted(_walked(root, suffix))
    if done.returncode != 0:
        return sorted(_walked(root, suffix))
    return sorted(file for name in done.stdout.split("\0") if name and (file := root / name).is_file())


def _walked(folder: Path, suffix: str) -> Iterator[Path]:
    for entry in folder.iterdir():
        if entry.name.startswith(".") or entry.name in _NOT_THEIRS:
            continue
        if entry.is_dir() and not entry.is_symlink():
            yield from _walked(entry, suffix)
        elif entry.name.endswith(suffix):
            yield entry


def documents(root: Path) -> Sequence[tuple[Path, str]]:
    """Returns the committed documents with their texts, without those that `tidegate jobs docs` has written."""
    texts = ((file, file.read_text(encoding="utf-8")) for file in repository_files(root, ".md"))
    return [(file, text) for file, text in texts if GENERATED not in text[:400]]


def naming(code: str, texts: Sequence[tuple[Path, str]]) -> Sequence[Path]:
    """Returns the documents that name the job.

    A code that could be a word of the language (`notes`) counts only where it is marked as a name.
    """
    name = re.escape(code)
    pattern = rf"(?<![\w-]){name}(?![\w-])" if re.search(r"[-._\d]", code) else rf"[`'\"/]{name}(?:\.md)?[`'\")]"
    return [file for file, text in texts if re.search(pattern, text)]
