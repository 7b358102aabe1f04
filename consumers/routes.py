"""Which event types a job takes, with which model and function."""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, Literal, TypeVar

from tidegate_kernel.event import Event

ModelT = TypeVar("ModelT")
ResultT_co = TypeVar("ResultT_co", covariant=True)

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
