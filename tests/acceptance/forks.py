"""Commands as forks of one interpreter that has imported what they need: a start costs a tenth of a fresh one.

Each line of standard input asks for one, as JSON: {"arguments": [...], "environment": {...}, "folder": "...",
"stdin": "...", "tokens": {name: token or null}}. It is typed by every bearer at once. The line of standard output that
answers has what came of it: {name: [exit code, standard output, standard error]}.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import sys
import tempfile
import threading
import traceback
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import IO, Any

import tidegate
from tidegate.commands.face import COMMANDS, run_command_line
from tidegate.commands.late import load_command

_IN, _OUT, _ERR = 0, 1, 2
# What commands import only when they come to it.
_LATE = (
    "aiokafka",
    "alembic.command",
    "clickhouse_connect.driver.asyncclient",
    "projections.elasticsearch_sink",
    "rich.markdown",
    "tidegate.migrations.everything",
    "tidegate.worker",
)


@dataclass(frozen=True)
class Child:
    process: int
    out: IO[bytes]
    err: IO[bytes]

    def end(self) -> tuple[int, str, str]:
        _, status = os.waitpid(self.process, 0)
        return os.waitstatus_to_exitcode(status), _text(self.out), _text(self.err)


def main() -> None:
    # The commands have streams of their own.
    with os.fdopen(os.dup(_IN)) as requests, os.fdopen(os.dup(_OUT), "w") as answers:
        _import_all()
        gc.freeze()
        for line in requests:
            asked: Mapping[str, Any] = json.loads(line)
            children = {name: _fork(asked, token) for name, token in asked["tokens"].items()}
            print(json.dumps({name: child.end() for name, child in children.items()}), file=answers, flush=True)


def _import_all() -> None:
    for name, command in COMMANDS.items():
        load_command(name, command)
    for name in tidegate.__all__:
        getattr(tidegate, name)  # applications import them
    for name in _LATE:
        import_module(name)


def _fork(asked: Mapping[str, Any], token: str | None) -> Child:
    typed, out, err = (tempfile.TemporaryFile() for _ in range(3))  # noqa: SIM115  # read when the child has ended
    typed.write(asked["stdin"].encode())
    typed.seek(0)
    process = os.fork()
    if process == 0:
        for file, descriptor in ((typed, _IN), (out, _OUT), (err, _ERR)):
            os.dup2(file.fileno(), descriptor)
        _become(asked, token)
        os._exit(_exit_code())
    typed.close()
    return Child(process, out, err)


def _exit_code() -> int:
    """The command has ended as a program does, but for the modules: to take them apart costs more than all the rest."""
    code: object = 1
    try:
        run_command_line()
    except SystemExit as end:
        code = end.code
    except BaseException:
        traceback.print_exc()
    threading._shutdown()  # type: ignore[attr-defined]  # as multiprocessing does where it forks
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    assert isinstance(code, int), code
    return code


def _become(asked: Mapping[str, Any], token: str | None) -> None:
    """What a fresh `python -m tidegate` in that folder would find."""
    os.environ.clear()
    os.environ.update(asked["environment"])
    if token is not None:
        os.environ["TIDEGATE_TOKEN"] = token
    os.chdir(asked["folder"])
    sys.path[0] = asked["folder"]
    sys.argv = ["tidegate", *asked["arguments"]]


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


if __name__ == "__main__":
    main()
