"""What the code must not do, except in the places that are named here with their reason."""

from __future__ import annotations

import ast
import re

from tests.architecture.source import PACKAGES, Found, python_files, walk
from tidegate_kernel import logs

# Boundaries to code that is not ours: whatever it raises has a defined consequence there.
MAY_CATCH_EVERYTHING = {
    ("consumers/decoding.py", "Decoder.decode"): "models and upcasts are the user's code: an invalid event",
    ("consumers/projecting.py", "project"): "projection functions are the user's code: a dead letter",
    ("consumers/projecting.py", "_encode"): "documents are the user's objects: each is encoded by itself then",
    ("consumers/projecting.py", "_encode_apart"): "documents are the user's objects: a dead letter",
    ("consumers/projecting.py", "_delete"): "tombstone functions are the user's code: a dead letter",
    ("consumers/folding.py", "blaming"): "folds and their keys are the user's code: a dead letter",
    (
        "projections/folds/rendering.py",
        "rendered",
    ): "render functions are the user's code: the key rests",
    ("consumers/order.py", "Order._named"): "a job's own order key is the user's code: the record's key serves",
    ("consumers/subjects.py", "SubjectSeeker._sight"): "a job's own subject is the user's code: told as not known",
    ("consumers/isolation.py", "Isolation._under_savepoint"): "what a handler left behind speaks here: its own fault",
    (
        "tidegate/jobs/mediator.py",
        "Mediator.handler_name",
    ): "a name for a letter must not raise what the letter is about",
    ("tidegate/clocking.py", "run_clock"): "a scheduler that ends is started anew, whatever ended it",
    ("tidegate/jobs/clockwork/host.py", "ClockHost._work"): "a defect in one run cuts off no other run of its process",
    ("tidegate/jobs/clockwork/runner.py", "_worked"): "whatever ends a run ends that run alone, and is its failure",
    ("tidegate/commands/loading.py", "_explained"): "a user's module may raise anything while it is imported",
    ("tidegate/supervision.py", "supervise"): "a loop that ends is started anew, whatever ended it",
    ("tidegate/stack/stack.py", "_answers"): "any failure of a probe, of whichever client, means: not now",
    ("tidegate/testing/memory_source.py", "MemorySource.revoke"): "the real client swallows what a listener raises",
    ("tidegate_kernel/kafka_source.py", "KafkaSource.fetch"): "the client's parser raises anything for odd bytes",
}

MAY_READ_THE_TIME = {
    "tidegate_kernel/clock.py": "the clock itself",
    "tidegate/stack/": "servers of other processes know no clock of ours",
}


def test_everything_is_caught_only_at_the_boundaries() -> None:
    """A wide except swallows the defects of ten functions below it; each one here has a reason."""
    found = {(each.file, each.function): each.place for each in walk(*PACKAGES) if _catches_everything(each.node)}

    assert {place: at for place, at in found.items() if place not in MAY_CATCH_EVERYTHING} == {}
    assert set(MAY_CATCH_EVERYTHING) - set(found) == set(), "an exception that nobody needs any more"


def test_cancellation_is_never_caught() -> None:
    """Case 121: BaseException and a bare except catch CancelledError, and a worker that is told to stop goes on."""
    caught = [
        each.place
        for each in walk(*PACKAGES, "examples", "scripts")
        if isinstance(each.node, ast.ExceptHandler)
        and (each.node.type is None or "BaseException" in _names(each.node.type))
    ]
    suppressed = [
        each.place
        for each in walk(*PACKAGES, "examples", "scripts")
        if isinstance(each.node, ast.Call)
        and _name(each.node.func) == "suppress"
        and "BaseException" in _all_names(each.node)
    ]

    assert caught + suppressed == []


def test_retries_name_what_they_retry() -> None:
    """Case 121: retry_if_not_exception_type also retries cancellation; a list of what may be retried cannot."""
    pattern = re.compile(r"\bretry_if_not_\w+|\bretry_unless_\w+|\bretry_always\b")
    used = [
        f"{file.name}: {match}"
        for file in python_files(*PACKAGES, "examples")
        for match in pattern.findall(file.read_text(encoding="utf-8"))
    ]

    assert used == []


def test_time_comes_from_the_clock() -> None:
    """A module that asks the machine cannot be tested with a clock that jumps."""
    asked = {each.file: each.place for each in walk(*PACKAGES) if _asks_for_the_time(each.node)}

    strangers = {file: place for file, place in asked.items() if not file.startswith(tuple(MAY_READ_THE_TIME))}
    assert strangers == {}
    assert "tidegate_kernel/clock.py" in asked, "the search finds what is there"


def test_log_lines_are_named_by_constants() -> None:
    """An alert that looks for an event's name must not break because somebody rephrased a sentence."""
    names = {name for name, value in vars(logs).items() if name.isupper() and isinstance(value, str)}
    calls = [each for each in walk(*PACKAGES) if _is_log_call(each.node)]

    wrong = [each.place for each in calls if _event(each) not in names]
    used = {_event(each) for each in calls}

    assert wrong == []
    assert used, "the search finds what is there"
    assert names - used == set(), "an event that nobody logs"


def test_event_names_are_distinct_and_of_one_form() -> None:
    """`subject.what_happened`: two constants of one text would be one event to whoever reads the logs."""
    texts = [value for name, value in vars(logs).items() if name.isupper() and isinstance(value, str)]

    assert sorted(set(texts)) == sorted(texts)
    assert [text for text in texts if not re.fullmatch(r"[a-z_]+\.[a-z_]+", text)] == []


def _catches_everything(node: ast.AST) -> bool:
    if isinstance(node, ast.Call) and _name(node.func) == "suppress":
        return bool({"Exception", "BaseException"} & set(_all_names(node)))
    if not isinstance(node, ast.ExceptHandler):
        return False
    return node.type is None or bool({"Exception", "BaseException"} & set(_names(node.type)))


def _asks_for_the_time(node: ast.AST) -> bool:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    asked = f"{_name(node.func.value)}.{node.func.attr}"
    return bool(
        re.fullmatch(r"time\.(time|monotonic|perf_counter|process_time|sleep)(_ns)?", asked)
        or re.fullmatch(r"(datetime|date)\.(now|utcnow|today)", asked)
    )


def _is_log_call(node: ast.AST) -> bool:
    levels = {"debug", "info", "warning", "error", "critical", "exception"}
    return (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in levels
        and _name(node.func.value) in {"_log", "log", "logger"}
    )


def _event(found: Found) -> str:
    """The constant's name, or the source of whatever stands in its place."""
    assert isinstance(found.node, ast.Call)
    first = found.node.args[0] if found.node.args else found.node
    is_constant = isinstance(first, ast.Attribute) and _name(first.value) == "logs"
    return first.attr if is_constant and isinstance(first, ast.Attribute) else ast.unparse(first)


def _names(node: ast.expr) -> list[str]:
    parts = node.elts if isinstance(node, ast.Tuple) else [node]
    return [_name(part) for part in parts]


def _all_names(call: ast.Call) -> list[str]:
    return [_name(argument) for argument in call.args]


def _name(node: ast.AST) -> str:
    """The last name of a dotted expression."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""
