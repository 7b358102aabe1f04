"""What a run can be told by whoever asks for it: texts by name, read into the model that the job declares."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from pydantic import TypeAdapter, ValidationError

from tidegate_kernel.errors import Misconfigured


def read_input(job: str, model: type[Any] | None, parameters: Mapping[str, str]) -> Any:
    """Returns an instance of `model`, None where the job takes no parameters.

    Raises Misconfigured, naming the parameters at fault and none of their values.
    """
    if model is None:
        if parameters:
            raise Misconfigured(f"job {job!r} takes no parameters, and was given {', '.join(sorted(parameters))}")
        return None
    unknown = sorted(set(parameters) - set(_names(model)))
    if unknown:
        raise Misconfigured(f"job {job!r} has no parameter {', '.join(unknown)}; it has {', '.join(_names(model))}")
    try:
        if issubclass(model, msgspec.Struct):
            return msgspec.convert(dict(parameters), model, strict=False)
        return TypeAdapter(model).validate_python(dict(parameters))
    except ValidationError as error:
        faults = {".".join(map(str, each["loc"])): each["msg"] for each in error.errors(include_input=False)}
        told = "; ".join(f"{name}: {fault}" for name, fault in faults.items())
        raise Misconfigured(f"job {job!r}: parameters are not as {model.__name__} has them: {told}") from None
    except msgspec.ValidationError as error:
        raise Misconfigured(f"job {job!r}: parameters are not as {model.__name__} has them: {error}") from None


def _names(model: type[Any]) -> list[str]:
    if issubclass(model, msgspec.Struct):
        return list(model.__struct_fields__)
    return list(TypeAdapter(model).json_schema().get("properties", {}))
