"""Whole commands in the documents are ones that the command line takes: the words, and every option."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.core import TyperCommand, TyperGroup

from tidegate.commands.face import COMMANDS
from tidegate.commands.late import load_command

_ROOT = Path(__file__).parents[2]
_DOCUMENTS = sorted(
    path.relative_to(_ROOT).as_posix()
    for found in (_ROOT.glob("*.md"), *((_ROOT / name).rglob("*.md") for name in ("docs", "examples", "helm")))
    for path in found
)
_BLOCK = re.compile(r"^```(?:sh|bash|)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_ANY_BLOCK = re.compile(r"^```\w*\n.*?^```$", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
# `kubectl exec … -- tidegate status` and `TIDEGATE_TOKEN=… tidegate dlq replay` are commands, too.
_TIDEGATE = re.compile(r"(?:^|\s|/|\$ )tidegate ([a-z].*)$")
_QUOTED = re.compile(r"'[^']*'|\"[^\"]*\"")
_OPTION = re.compile(r"(?<![\w-])--?[a-z][a-z-]*")


def _commands(text: str) -> Iterator[str]:
    """Every command of ours: lines of blocks, and spans, which may be broken over two lines."""
    for block in _BLOCK.findall(text):
        for line in re.sub(r"\\\n\s*", " ", block).splitlines():
            yield from _ours(re.sub(r"\s#.*$", "", line))
    for span in _SPAN.findall(_ANY_BLOCK.sub("", text)):
        yield from _ours(" ".join(span.split()))


def _ours(line: str) -> Iterator[str]:
    for part in re.split(r"\||&&|;", _QUOTED.sub("X", line)):
        if found := _TIDEGATE.search(part.strip()):
            yield found[1]


def _wrong(command: str) -> str:
    """What the command line would not take of it; empty if nothing."""
    name, *words = command.split()
    if name not in COMMANDS:
        return f"there is no command {name!r}"
    found = load_command(name, COMMANDS[name])
    while isinstance(found, TyperGroup) and words and words[0] in found.commands:
        found = found.commands[words.pop(0)]
    if isinstance(found, TyperGroup):
        # `tidegate checkpoint`, `tidegate jobs …`: all of them.
        return f"there is no {words[0]!r} below {name!r}" if words and words[0].isalpha() else ""
    assert isinstance(found, TyperCommand)
    if found.context_settings.get("ignore_unknown_options"):
        return ""  # it hands words on to a command that checks them itself
    known = {"--help", "-h", *(option for each in found.params for option in (*each.opts, *each.secondary_opts))}
    return ", ".join(option for option in _OPTION.findall(" ".join(words)) if option not in known)


@pytest.mark.parametrize("document", _DOCUMENTS)
def test_commands_of_documents_are_taken_whole(document: str) -> None:
    """An option that was renamed is typed at night, and refused."""
    found = _commands((_ROOT / document).read_text(encoding="utf-8"))
    assert [f"{command}: {wrong}" for command in found if (wrong := _wrong(command))] == []


def test_documents_are_read() -> None:
    """Else the test above would pass whatever they say."""
    found = [command for each in _DOCUMENTS for command in _commands((_ROOT / each).read_text(encoding="utf-8"))]
    assert len(found) > 300
    assert list(
        _commands("see `tidegate offsets\nset JOB --too 3` and\n\n```sh\nx -- tidegate dlq list --jobs 'a' | y\n```\n")
    ) == [
        "dlq list --jobs X",
        "offsets set JOB --too 3",
    ]
    assert [_wrong("offsets set JOB --too 3"), _wrong("dlq lists"), _wrong("look")] == [
        "--too",
        "there is no 'lists' below 'dlq'",
        "there is no command 'look'",
    ]
