"""For tests of applications: `async with testing.run(app, db=dsn, deps=…) as t: await t.send("topic", Event(…))`.

The road is the real one (decoding, claims, handlers, settling, outbox) on a real Postgres; Kafka and the sinks live in
this process and pass the same contract suites as the real ones. The pytest fixture `tidegate_postgres` gives each test
a database of its own.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from projections.memory import MemorySink
    from tidegate.testing.clock import JobRun
    from tidegate.testing.driver import Driver, run
    from tidegate.testing.jobs import NotSettled
    from tidegate.testing.memory import MemoryBroker
    from tidegate.testing.schedules import scheduled_runs
    from tidegate.testing.views import DeadLetter, Published

__all__ = [
    "DeadLetter",
    "Driver",
    "JobRun",
    "MemoryBroker",
    "MemorySink",
    "NotSettled",
    "Published",
    "run",
    "scheduled_runs",
]

# The pytest plugin stands in this package and is loaded at every start of pytest: nothing else may come with it.
_HOMES = {
    "DeadLetter": "tidegate.testing.views",
    "Driver": "tidegate.testing.driver",
    "JobRun": "tidegate.testing.clock",
    "MemoryBroker": "tidegate.testing.memory",
    "MemorySink": "projections.memory",
    "NotSettled": "tidegate.testing.jobs",
    "Published": "tidegate.testing.views",
    "run": "tidegate.testing.driver",
    "scheduled_runs": "tidegate.testing.schedules",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
