"""What a job asks the mediator for, by names: classes of requests, their handlers, functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from consumers.routes import Route
from tidegate.app import App
from tidegate.jobs.clockwork.checking import handlers_of
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.commands import commands_of
from tidegate.jobs.declaration import ConsumerJob, Job
from tidegate.jobs.docs.sheet import Sheet, codes
from tidegate.jobs.handlers import Handler


def function_name(function: object) -> str:
    """The name by which people find a function in its source."""
    named = getattr(function, "func", function)  # of a functools.partial
    return str(getattr(named, "__qualname__", type(named).__qualname__))


def requests_of(function: Callable[..., Any]) -> str:
    """The classes that a function makes, or its own name where it does not tell."""
    return " | ".join(each.__name__ for each in commands_of(function)) or function_name(function)


def work_of(job: Job, route: Route[Any]) -> str:
    """What becomes of a route's events: the command of a ConsumerJob, else the pure function."""
    return requests_of(route.function) if isinstance(job, ConsumerJob) else function_name(route.function)


def handlers(app: App, job: Job | ClockJob) -> Sequence[Handler]:
    """The handlers that the job's requests may come to."""
    if isinstance(job, ClockJob):
        return handlers_of(job, app.handlers)
    return app.handlers_of(job) if isinstance(job, ConsumerJob) else []


def handler_names(app: App, function: Callable[..., Any]) -> Sequence[str]:
    """Dotted names of the handlers that take what the function makes; none where it does not tell."""
    return [app.commands[each].name for each in commands_of(function) if each in app.commands]


def calls_of(sheet: Sheet) -> str:
    """What its handlers call outside, as far as it was declared: before the transaction or in it."""
    mine = handlers(sheet.app, sheet.job)
    before = codes([each.name for each in mine if each.prepare is not None])
    inside = codes([each.name for each in mine if each.calls_outside])
    told = [sheet.say("calls.before", handlers=before)] if before else []
    told += [sheet.say("calls.inside", handlers=inside)] if inside else []
    return "; ".join(told) or sheet.say("calls.none")
