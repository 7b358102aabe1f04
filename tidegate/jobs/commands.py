"""Which commands a mapping function makes, as far as it says."""

from __future__ import annotations

import typing
from collections.abc import Callable, Sequence
from typing import Any


def commands_of(function: Callable[..., Any]) -> Sequence[type[Any]]:
    """The classes that a mapping function is annotated to return, None aside; empty where nothing tells.

    A class that stands for the function makes its own instances.
    """
    if isinstance(function, type):
        return (function,)
    try:
        returned = typing.get_type_hints(function).get("return")
    except (NameError, TypeError):
        return ()
    choices = typing.get_args(returned) or (returned,)
    return [choice for choice in choices if isinstance(choice, type) and choice not in (type(None), object, Any)]
