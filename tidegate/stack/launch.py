"""Becomes a server: writes who it is to a record file, then replaces itself with the server's command.

The record is on disk before the server exists, so a starter that is killed at any instruction leaves nothing unknown
behind. Until the command runs, this process holds the starter's lock (an inherited descriptor that closes on exec), so
that no other starter looks at the record in between. Run by path, in isolation: it must not import the package.
"""

import json
import os
import pwd
import sys
from pathlib import Path
from typing import Any

import psutil


def main(record_file: str, lock_descriptor: str, plan_json: str) -> None:
    """A process of its own is the server that the plan describes, and the record file names it. Returns once it is."""
    os.set_inheritable(int(lock_descriptor), False)
    became, becoming = os.pipe()  # the second end closes when the command runs
    if os.fork() == 0:
        os.close(became)
        _be_the_server(Path(record_file), json.loads(plan_json))
    os.close(becoming)
    os.read(became, 1)


def _be_the_server(record_file: Path, plan: dict[str, Any]) -> None:
    os.setsid()
    record = {**plan, "pid": os.getpid(), "started_at": psutil.Process().create_time()}
    unfinished = record_file.with_suffix(f".{os.getpid()}")
    unfinished.touch(mode=0o600)
    unfinished.write_text(json.dumps(record))
    unfinished.replace(record_file)
    if plan["user"]:
        _become(plan["user"])
    os.execvpe(plan["command"][0], plan["command"], os.environ)  # noqa: S606  # no shell, on purpose


def _become(user: str) -> None:
    entry = pwd.getpwnam(user)
    os.initgroups(user, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


if __name__ == "__main__":
    main(*sys.argv[1:])
