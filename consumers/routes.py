"""Which event types a job takes, with which model and function."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import Any, Generic, Literal, TypeVar

from tidegate_kernel.event import Event

ModelT = TypeVar("ModelT")
ResultT_co = TypeVar("ResultT_co", covariant=True)
StateT = TypeVar("StateT")

Step = Callable[[StateT | None], StateT | None]
"""What an event does to the state of its key; None: there is none, before or after."""

Upcast = Callable[[dict[str, Any]], dict[str, Any]]
"""Turns the plain JSON object of one schema version into that of the next."""

Unlisted = Literal["skip", "dead_letter"]
"""What happens to types and versions no route takes; must be said."""


@dataclass(frozen=True, slots=True)
class Route(Generic[ResultT_co]):
    """Events of `type` up to schema `version` decode to `model` and go to `function`."""

    type: str
    model: builtins.type[Any]
    function: Callable[[Event[Any]], ResultT_co]
    version: int = 1
    upcast: Mapping[int, Upcast] = field(default_factory=dict)

    @property
    def function_name(self) -> str:
        """What a dead letter calls `function`; a callable object goes by its class."""
        return str(getattr(self.function, "__qualname__", type(self.function).__name__))


def on(
    type: str,
    model: builtins.type[ModelT],
    function: Callable[[Event[ModelT]], ResultT_co],
    *,
    version: int = 1,
    upcast: Mapping[int, Upcast] | None = None,
) -> Route[ResultT_co]:
    """Declares that events of `type` are decoded to `model` and given to `function`.

    `version` is the schema version that `model` describes; an older version n is lifted by `upcast[n]`, then
    `upcast[n+1]`, and so on.
    A function whose parameter is not `Event[model]` does not type-check.
    """
    return Route(type, model, function, version, dict(upcast or {}))


def fold(
    type: str,
    model: builtins.type[ModelT],
    function: Callable[[StateT | None, Event[ModelT]], StateT | None],
    *,
    version: int = 1,
    upcast: Mapping[int, Upcast] | None = None,
) -> Route[Step[StateT]]:
    """Declares that events of `type` are decoded to `model`, and that `function` (pure) makes a key's next state.

    It gets the state, None where there is none, and returns the next one, None to delete it. `version` and `upcast` as
    of `on`. A function of another model, or of another state than its job's, does not type-check.
    """

    @wraps(function)
    def step_of(event: Event[Any]) -> Step[StateT]:
        return lambda state: function(state, event)

    return Route(type, model, step_of, version, dict(upcast or {}))
