"""All tests, several files side by side: `python scripts/all_tests.py -n 2 …`, with pytest's own words.

Side by side they take the cores from each other, and a few watch the clock. What fails so is run once more, alone:
it has to pass then, and is named, for it wants mending. Where more than a few fail, that is no matter of cores.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_CACHE = ROOT / ".pytest_cache" / "v" / "cache" / "lastfailed"
_TESTS_FAILED = 1
_MOST_ONCE_MORE = 4


def main(words: Sequence[str]) -> int:
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


def _pytest(words: Sequence[str]) -> int:
    return subprocess.run([sys.executable, "-m", "pytest", *words], cwd=ROOT, check=False).returncode


def _failed() -> list[str]:
    """The names of the tests that failed; also files that could not be read, which fail again."""
    return list(json.loads(_CACHE.read_text())) if _CACHE.is_file() else []


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
