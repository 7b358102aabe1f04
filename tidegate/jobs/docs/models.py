"""The fields of a model, whatever library it is made with, as a document shows them."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import pydantic

from tidegate.jobs.text import Text, Words


@dataclass(frozen=True, slots=True)
class ModelField:
    """A field as whoever fills it in sees it; `description` None where nobody has said anything."""

    name: str
    type: str
    is_required: bool
    description: Words | None = None


def fields_of(model: type[Any]) -> Sequence[ModelField]:
    """Returns the model's fields in their order: pydantic, msgspec, dataclass; none for any other class."""
    hints = _hints(model)
    return [
        ModelField(name, type_text(hints.get(name, Any)), is_required, said or _said_in(hints.get(name)))
        for name, is_required, said in _declared(model)
    ]


def _declared(model: type[Any]) -> Iterator[tuple[str, bool, Words | None]]:
    """Name, whether it has to be given, and what the library itself was told of it."""
    if issubclass(model, pydantic.BaseModel):
        for name, each in model.model_fields.items():
            yield name, each.is_required(), each.description
    elif issubclass(model, msgspec.Struct):
        for field in msgspec.structs.fields(model):
            yield field.encode_name, field.required, None
    elif dataclasses.is_dataclass(model):
        for own in dataclasses.fields(model):
            has_default = own.default is not dataclasses.MISSING or own.default_factory is not dataclasses.MISSING
            yield own.name, not has_default, own.metadata.get("description")


def _hints(model: type[Any]) -> dict[str, Any]:
    try:
        return typing.get_type_hints(model, include_extras=True)
    except (NameError, TypeError):
        return {}  # it names what only a type checker imports


def _said_in(hint: Any) -> Words | None:
    """What an `Annotated` says: a Text of ours, or the description of msgspec's Meta."""
    for extra in getattr(hint, "__metadata__", ()):
        if isinstance(extra, Text):
            return extra
        if isinstance(extra, msgspec.Meta) and extra.description:
            return extra.description
    return None


def type_text(hint: Any) -> str:
    """A type as one would write it, without modules: `dict[str, int]`, `date | None`."""
    if typing.get_origin(hint) is typing.Annotated:
        return type_text(hint.__origin__)
    if hint is type(None):
        return "None"
    if isinstance(hint, type) and not typing.get_args(hint):
        return hint.__name__
    return inspect.formatannotation(_plain(hint)).replace("typing.", "")


def _plain(hint: Any) -> Any:
    return _Shown(hint) if typing.get_args(hint) else hint


class _Shown:
    """Prints a type with arguments without the modules that its parts come from."""

    def __init__(self, hint: Any) -> None:
        self._hint = hint

    def __repr__(self) -> str:
        origin, arguments = typing.get_origin(self._hint), typing.get_args(self._hint)
        parts = [type_text(each) if each is not Ellipsis else "…" for each in arguments]
        if origin is typing.Union or getattr(origin, "__name__", "") == "UnionType":
            return " | ".join(parts)
        if origin is typing.Literal:
            return " | ".join(repr(each) for each in arguments)
        return f"{getattr(origin, '__name__', origin)}[{', '.join(parts)}]"
