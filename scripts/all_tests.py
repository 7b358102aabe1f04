"""All tests, several files side by side: `python scripts/all_tests.py -n 3 …`, with pytest's own words.

Side by side they take the cores from each other, and a few watch the clock. What fails so is run once more, alone:
it has to pass then, and is named, for it wants mending. Where more than a few fail, that is no matter of cores.

With `--memory` as the first word, their Postgres keeps its files in memory where there is room: each of 1,500 tests has
a database of its own, 900 files that a disk takes longer to make and to remove than most tests take.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from hashlib import blake2b
from pathlib import Path

from tidegate.stack.names import ServerName
from tidegate.stack.progress import Lines
from tidegate.stack.stack import Stack
from tidegate.stack.state import StackFolder

ROOT = Path(__file__).resolve().parents[1]
_MEMORY = Path("/dev/shm")  # noqa: S108  # the place of memory on Linux; what is made there has its owner in its name
# A few databases of 10 MB at a time, and 1 GB of Postgres' log before it begins again; the tests want memory, too.
_ROOM_BYTES = 4 << 30
_CACHE = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
_TESTS_FAILED = 1
_MOST_ONCE_MORE = 4


def main(words: Sequence[str]) -> int:
    in_memory = words[:1] == ["--memory"]
    with postgres_in_memory() if in_memory and has_room() else nullcontext():
        return run(words[1:] if in_memory else words)


def run(words: Sequence[str]) -> int:
    """Returns pytest's exit code; that of its second run where there was one."""
    _CACHE.unlink(missing_ok=True)
    code = _pytest(words)
    failed = _failed() if code == _TESTS_FAILED else []
    if not 0 < len(failed) <= _MOST_ONCE_MORE:
        return code
    print("\nonce more, alone:", *failed, sep="\n  ", flush=True)
    code = _pytest(failed)
    if code == 0:
        print("\npassed when alone, and want mending:", *failed, sep="\n  ", flush=True)
    return code


def has_room() -> bool:
    """Whether a Postgres of the tests' own is wanted and fits: no other is given, and memory is free for it."""
    if os.environ.get(ServerName.POSTGRES.setting) or not _MEMORY.is_dir():
        return False
    available = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemAvailable"))
    return min(shutil.disk_usage(_MEMORY).free, int(available.split()[1]) * 1024) >= _ROOM_BYTES


@contextmanager
def postgres_in_memory() -> Iterator[None]:
    """The environment names a Postgres in memory, which ends with the last run of this checkout that uses it."""
    folder = _MEMORY / f"tidegate-{os.geteuid()}-{blake2b(str(ROOT).encode(), digest_size=6).hexdigest()}"
    stack, setting = Stack(folder, names=[ServerName.POSTGRES]), ServerName.POSTGRES.setting
    with StackFolder(folder).in_use() as nobody_else_uses_it:
        try:
            os.environ[setting] = stack.up(Lines())[ServerName.POSTGRES]
            yield
        finally:
            os.environ.pop(setting, None)
            if nobody_else_uses_it():
                stack.down(wipe=True)


def _pytest(words: Sequence[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, check=False).returncode


def _failed() -> list[str]:
    """The names of the tests that failed; also files that could not be read, which fail again."""
    return list(json.loads(_CACHE.read_text())) if _CACHE.is_file() else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
