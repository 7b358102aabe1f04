"""One command line, typed by several bearers: its modules are imported once, and each bearer's command is a fork.

Standard input names them as JSON: {"arguments": [...], "tokens": {name: token or null}}. Standard output has what came
of it: {name: [exit code, standard output, standard error]}.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any

import tidegate
from tidegate.commands.face import COMMANDS, run_command_line
from tidegate.commands.late import load_command

_OUT, _ERR = 1, 2


@dataclass(frozen=True)
class Child:
    process: int
    out: IO[bytes]
    err: IO[bytes]

    def end(self) -> tuple[int, str, str]:
        _, status = os.waitpid(self.process, 0)
        return os.waitstatus_to_exitcode(status), _text(self.out), _text(self.err)


def main() -> None:
    asked: Mapping[str, Any] = json.load(sys.stdin)
    load_command(asked["arguments"][0], COMMANDS[asked["arguments"][0]])
    for name in tidegate.__all__:
        getattr(tidegate, name)  # the application imports them
    children = {name: _fork(asked["arguments"], token) for name, token in asked["tokens"].items()}
    print(json.dumps({name: child.end() for name, child in children.items()}))


def _fork(arguments: Sequence[str], token: str | None) -> Child:
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115  # read when the child has ended
    process = os.fork()
    if process == 0:
        os.dup2(out.fileno(), _OUT)
        os.dup2(err.fileno(), _ERR)
        if token is not None:
            os.environ["TIDEGATE_TOKEN"] = token
        sys.argv = ["tidegate", *arguments]
        run_command_line()
    return Child(process, out, err)


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode()


if __name__ == "__main__":
    main()
