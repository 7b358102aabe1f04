"""Becomes a server: writes who it is to a record file, then replaces itself with the server's command.

The record is on disk before the server exists, so a starter that is killed at any instruction leaves nothing unknown
behind. Until the command runs, this process holds the starter's lock (an inherited descriptor that closes on exec), so that
no other starter looks at the record in between. Run by path, in isolation: it must not import the package.
"""

import json
import os
import sys
from pathlib import Path

import psutil


def main(record_file: str, lock_descriptor: str, plan_json: str) -> None:
    """The calling process is the server that the plan describes, and the record file names it."""
    plan = json.loads(plan_json)
    os.set_inheritable(int(lock_descriptor), False)
    os.setsid()
    record = {**plan, "pid": os.getpid(), "started_at": psutil.Process().create_time()}
    unfinished = Path(f"{record_file}.{os.getpid()}")
    unfinished.write_text(json.dumps(record))
    unfinished.chmod(0o600)
    unfinished.replace(record_file)
    if plan["user"]:
        _become(plan["user"])
    os.execvpe(plan["command"][0], plan["command"], os.environ)  # noqa: S606  # no shell, on purpose


def _become(user: str) -> None:
    import pwd

    entry = pwd.getpwnam(user)
    os.initgroups(user, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


if __name__ == "__main__":
    main(*sys.argv[1:])
