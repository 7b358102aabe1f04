"""Becomes a command that ends with its starter: `python mortal.py STARTER USER COMMAND…`, an empty USER changes none.

Even a starter that is killed leaves no server behind. Run by path: it must not import the package.
"""

import ctypes
import os
import pwd
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(starter: str, user: str, *command: str) -> None:
    if user:
        _become(user)
    if sys.platform == "linux":
        # After the change of user, which would take it back.
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(starter):
        sys.exit("its starter is gone already")
    os.execvp(command[0], command)


def _become(user: str) -> None:
    entry = pwd.getpwnam(user)
    os.initgroups(user, entry.pw_gid)
    os.setgid(entry.pw_gid)
    os.setuid(entry.pw_uid)


if __name__ == "__main__":
    main(*sys.argv[1:])
