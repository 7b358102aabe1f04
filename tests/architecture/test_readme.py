"""What the documents say of the repository is true: code, commands, files, sections and tests that they name exist."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import pytest
from typer.core import TyperGroup

from dlq.envelope import replay_instruction
from dlq.runs import Outcome
from tidegate.commands.face import COMMANDS
from tidegate.commands.late import load_command
from tidegate.console.replay_hazards import HazardCode
from tidegate_kernel.errors import Reason

_ROOT = Path(__file__).parents[2]
_DOCUMENTS = sorted(
    path.relative_to(_ROOT).as_posix()
    for found in (_ROOT.glob("*.md"), (_ROOT / "docs").rglob("*.md"), (_ROOT / "examples").rglob("*.md"))
    for path in found
)
_EXAMPLE = _ROOT / "examples" / "readme_app.py"
_FOLD = _ROOT / "examples" / "readme_fold.py"
_GUIDE = "docs/jobs-by-the-clock.md"
_CODE_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _read(name: str) -> str:
    return (_ROOT / name).read_text(encoding="utf-8")


def _blocks(name: str, language: str) -> list[str]:
    return [body for kind, body in _CODE_BLOCK.findall(_read(name)) if kind == language]


def _prose(name: str) -> str:
    return _CODE_BLOCK.sub("", _read(name))


def _anchors(name: str) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", _prose(name), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-") for heading in headings}


def test_readme_shows_the_example_line_by_line() -> None:
    """The example is what tests type-check and run; a README beside it would rot."""
    assert _blocks("README.md", "python") == [each.read_text(encoding="utf-8") for each in (_EXAMPLE, _FOLD)]


def test_readme_shows_the_examples_migration() -> None:
    """Without this file the application does not run."""
    assert _blocks("README.md", "sql") == [_read("examples/migrations/0001_spending.sql")]


def test_example_is_short() -> None:
    """What does not fit on a screen is not tried out."""
    assert all(len(each.read_text(encoding="utf-8").splitlines()) <= 45 for each in (_EXAMPLE, _FOLD))


def test_readme_application_is_strictly_typed(tmp_path: Path) -> None:
    """A face that needs an ignore in its first example needs one everywhere."""
    for name, block in zip(("shop.py", "value.py"), _blocks("README.md", "python"), strict=True):
        (tmp_path / name).write_text(block, encoding="utf-8")
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "mypy",
            "--strict",
            "--config-file",
            str(_ROOT / "pyproject.toml"),
            str(tmp_path / "shop.py"),
            str(tmp_path / "value.py"),
        ],
        cwd=_ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_guide_of_jobs_by_the_clock_shows_its_examples_line_by_line() -> None:
    """They are type-checked, and `tests/integration/test_clock_guide.py` runs them; the second and third in part."""
    code = {
        name: _read(f"examples/by_the_clock/{name}.py").replace("examples.by_the_clock.", "")
        for name in ("points", "test_points", "receipts", "prices")
    }
    points, test_points, *parts = _blocks(_GUIDE, "python")

    assert (points, test_points) == (code["points"], code["test_points"])
    assert [name for part in parts for name in ("receipts", "prices") if f"\n{part}" in code[name]] == [
        *("receipts", "receipts"),
        *("prices", "prices", "prices"),
    ]
    assert _blocks(_GUIDE, "sql") == [_read("examples/by_the_clock/migrations/0001_account.sql")]


@pytest.mark.parametrize("document", _DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    """A link to a file or section that is gone says that nobody reads the documents."""
    for target in re.findall(r"\]\(([^)\s]+)\)", _prose(document)):
        if "://" in target:
            continue
        file, _, section = target.partition("#")
        found = (_ROOT / document).parent / file if file else _ROOT / document
        assert found.exists(), f"{document} links to {target}"
        if section:
            assert section in _anchors(found.resolve().relative_to(_ROOT).as_posix()), f"{document} links to {target}"


@pytest.mark.parametrize("document", _DOCUMENTS)
def test_named_files_exist(document: str) -> None:
    """Architecture by file names is worth nothing once a file has moved."""
    folders = "tidegate|tidegate_kernel|consumers|inbox|dlq|projections|examples|tests|scripts|docs|requirements|bench"
    for name in re.findall(rf"`((?:{folders})/[\w./-]+)`", _prose(document)):
        assert (_ROOT / name).exists(), f"{document} names {name}"


@pytest.mark.parametrize("document", ["ARCHITECTURE.md", "docs/guarantees.md"])
def test_named_functions_exist(document: str) -> None:
    """`Class.method` is how the documents point into the code."""
    source = "\n".join(path.read_text(encoding="utf-8") for path in _sources())
    for owner, member in re.findall(r"`([A-Z]\w+)\.(\w+)`", _prose(document)):
        body = re.search(rf"^class {owner}\b.*?(?=^class |\Z)", source, re.MULTILINE | re.DOTALL)
        assert body, f"{document} names {owner}"
        assert re.search(rf"\b{member}\b", body[0]), f"{document} names {owner}.{member}"


def _sources() -> Iterator[Path]:
    for package in ("tidegate", "tidegate_kernel", "consumers", "inbox", "dlq", "projections"):
        yield from (_ROOT / package).rglob("*.py")


def test_every_reason_is_explained() -> None:
    """Whoever finds a letter at night looks its reason up, and no other."""
    told = re.findall(r"^\| `(\w+)` \|", _read("docs/dead-letters.md"), re.MULTILINE)
    assert sorted(told) == sorted(Reason)


def test_runbook_explains_every_hazard_and_outcome_of_a_run() -> None:
    """A plan warns by a code, a report counts by one: what it means is looked up there, before --yes is typed."""
    tables = re.findall(r"^\|(?: `\w+`,?)+ \|", _read("docs/operations/dead-letters.md"), re.MULTILINE)
    told = [code for row in tables for code in re.findall(r"\w+", row)]
    assert sorted(told) == sorted([*HazardCode, *Outcome])


def test_every_header_of_a_dead_letter_is_listed() -> None:
    """Programs that read the topic are written from this list."""
    source = _read("dlq/envelope.py")
    made = {*re.findall(r'(?:yield |\()"([a-z-]+)", ', source), "stack", "outbox-id"}
    assert set(re.findall(r"`tg-dlq-([a-z-]+)`", _read("docs/dead-letters.md"))) == made


def test_named_tests_exist() -> None:
    """A guarantee whose proof was renamed or removed has none."""
    tests = "\n".join(path.read_text(encoding="utf-8") for path in (_ROOT / "tests").rglob("*.py"))
    named = set(re.findall(r"`(test_\w+)`", "\n".join(map(_read, _DOCUMENTS))))
    assert len(named) > 40
    assert sorted(name for name in named if not re.search(rf"def {name}\(", tests)) == []


@pytest.mark.parametrize("document", _DOCUMENTS)
def test_named_commands_exist(document: str) -> None:
    """An operator types what the documents say."""
    known = _commands()
    typed = re.compile(r"(?:^|`|\$ |/)tidegate ([a-z][a-z0-9]*(?:-[a-z]+)*)(?: ([a-z]+(?:-[a-z]+)*))?", re.MULTILINE)
    for first, second in typed.findall(_read(document)):
        assert first in known, f"{document} says 'tidegate {first}'"
        below = known[first]
        assert not (below and second) or second in below, f"{document} says 'tidegate {first} {second}'"


def test_the_replay_instruction_of_letters_is_a_command_or_said_not_to_be() -> None:
    """It is pasted at night. Letters that were written before the command are replayed with it, so its form stays."""
    words = replay_instruction(UUID(int=1)).split()
    assert words[:3] == ["tidegate", "dlq", "replay"]
    letters = load_command("dlq", COMMANDS["dlq"])
    assert isinstance(letters, TyperGroup)
    if (replay := letters.commands.get("replay")) is None:
        assert "does not exist yet" in _read("README.md")
    else:
        options = {name for parameter in replay.params for name in parameter.opts}
        assert {word for word in words if word.startswith("--")} <= options


def _commands() -> dict[str, frozenset[str]]:
    """Every command, with the commands below it."""
    commands = {name: load_command(name, late) for name, late in COMMANDS.items()}
    return {
        name: frozenset(command.commands if isinstance(command, TyperGroup) else ())
        for name, command in commands.items()
    }


@pytest.mark.parametrize("document", _DOCUMENTS)
def test_named_targets_exist(document: str) -> None:
    """As above, for make."""
    targets = set(re.findall(r"^([a-z-]+):", _read("Makefile"), re.MULTILINE))
    named = set(re.findall(r"(?:^|`)(?:DEMO_\w+=\w+ )?make ([a-z-]+)", _read(document), re.MULTILINE))
    assert named <= targets, f"{document}: {named - targets}"
