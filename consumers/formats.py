"""Payload formats: bytes to event models and back, with an exact reason when it does not work."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import msgspec
from pydantic import BaseModel, TypeAdapter, ValidationError
from pydantic.errors import PydanticUndefinedAnnotation, PydanticUserError
from pydantic_core import SchemaValidator

from consumers.json_text import is_finite, not_json
from tidegate_kernel.errors import InvalidEvent, Misconfigured, Poison, Reason, Undecodable

_PATH = " - at `"
# A list of a thousand wrong items has a thousand errors; a dead letter needs the first few.
_ERRORS_NAMED = 3


class Json:
    """JSON as RFC 8259 says: UTF-8 without a byte order mark, no NaN or Infinity, no half surrogate pairs.

    Models are pydantic models, msgspec Structs, dataclasses or `dict`. Repeated keys are accepted, the last one counts.
    Integers keep their full size where the model says `int` (up to 4300 digits); a sink with 64-bit columns refuses
    them later by name. U+0000 in a string is JSON and accepted. What a msgspec model does not name is passed over
    without a close look.
    """

    def decoder(self, model: type[Any]) -> Callable[[bytes | msgspec.Raw], Any]:
        """Raises Misconfigured if `model` is nothing that can be decoded."""
        return _pydantic_decoder(model) if _is_pydantic(model) else _msgspec_decoder(model)

    def converter(self, model: type[Any]) -> Callable[[dict[str, Any]], Any]:
        """Raises Misconfigured if `model` is nothing that can be decoded."""
        return _pydantic_converter(model) if _is_pydantic(model) else _msgspec_converter(model)

    def encode(self, model: Any) -> bytes:
        """Returns compact UTF-8 JSON. Raises InvalidEvent if `model` holds NaN or Infinity: JSON has none."""
        if not is_finite(model):
            raise InvalidEvent(f"{_name(type(model))!r} holds NaN or Infinity", reason=Reason.INVALID_NUMBER)
        if isinstance(model, BaseModel):
            return model.model_dump_json(by_alias=True).encode()
        if _is_pydantic(type(model)):
            return TypeAdapter(type(model)).dump_json(model, by_alias=True)
        return msgspec.json.encode(model)


def _msgspec_decoder(model: type[Any]) -> Callable[[bytes | msgspec.Raw], Any]:
    types = _inspect(model)
    decode = msgspec.json.Decoder(model).decode
    # msgspec refuses NaN for floats but reads the strings "NaN" and "Infinity" as Decimals.
    check = "DecimalType(" in types

    def decode_payload(payload: bytes | msgspec.Raw) -> Any:
        try:
            event = decode(payload)
        except (ValueError, RecursionError) as error:
            raise _explain(error, payload, model) from None
        return _finite(event, model) if check else event

    return decode_payload


def _msgspec_converter(model: type[Any]) -> Callable[[dict[str, Any]], Any]:
    _inspect(model)

    def convert(plain: dict[str, Any]) -> Any:
        try:
            return _finite(msgspec.convert(plain, model), model)
        except msgspec.ValidationError as error:
            raise InvalidEvent(f"{_name(model)!r}: {_without_values(error)}") from None

    return convert


def _inspect(model: type[Any]) -> str:
    """The types inside `model`, spelled. Raises Misconfigured for a type that would refuse every event."""
    try:
        types = repr(msgspec.inspect.type_info(model))
    except (TypeError, NameError) as error:
        raise Misconfigured(f"event model {_name(model)!r} cannot be decoded from JSON: {error}") from error
    if "CustomType(" in types:
        raise Misconfigured(
            f"event model {_name(model)!r} holds a type that msgspec does not know; make the model a pydantic one"
        )
    return types


def _explain(error: Exception, payload: bytes | msgspec.Raw, model: type[Any]) -> Poison:
    if isinstance(error, msgspec.ValidationError):
        if error.__cause__ is None and "out of range" in str(error):
            place = f"{_name(model)!r}: a number is out of range{_path(error)}"
            return Undecodable(place, reason=Reason.INVALID_NUMBER)
        return InvalidEvent(f"{_name(model)!r}: {_without_values(error)}")
    return not_json(payload)


def _without_values(error: msgspec.ValidationError) -> str:
    """msgspec's message and path, unless it quotes a value or what the model's own checks said."""
    text = str(error)
    if error.__cause__ is None and text.startswith(("Expected ", "Object missing ")):
        return text[0].lower() + text[1:]
    return f"a value is not allowed{_path(error)}"


def _path(error: Exception) -> str:
    text = str(error)
    at = text.rfind(_PATH)
    return text[at:] if at >= 0 else ""


def _is_pydantic(model: type[Any]) -> bool:
    return hasattr(model, "__pydantic_validator__")


def _pydantic_decoder(model: type[Any]) -> Callable[[bytes | msgspec.Raw], Any]:
    validate = _validator(model).validate_json
    check = _holds_floats(model)
    read_json = msgspec.json.Decoder().decode

    def decode_payload(payload: bytes | msgspec.Raw) -> Any:
        try:
            # pydantic reads NaN, Infinity and 1e999; JSON and every store behind us do not.
            read_json(payload)
        except (ValueError, RecursionError):
            raise not_json(payload) from None
        try:
            event = validate(bytes(payload))
        except ValidationError as error:
            raise _refused(error, model) from None
        return _finite(event, model) if check else event

    return decode_payload


def _pydantic_converter(model: type[Any]) -> Callable[[dict[str, Any]], Any]:
    validate = _validator(model).validate_python

    def convert(plain: dict[str, Any]) -> Any:
        try:
            return _finite(validate(plain), model)
        except ValidationError as error:
            raise _refused(error, model) from None

    return convert


def _validator(model: type[Any]) -> SchemaValidator:
    """The complete validator of `model`. Raises Misconfigured if a type it names does not exist."""
    try:
        adapter = TypeAdapter(model)
        adapter.rebuild(raise_errors=True)
    except (PydanticUserError, PydanticUndefinedAnnotation) as error:
        raise Misconfigured(f"event model {_name(model)!r} is not complete: {error}") from error
    validator: Any = adapter.validator
    return validator  # type: ignore[no-any-return]  # pydantic types it as one of two classes with the same methods


def _holds_floats(model: type[Any]) -> bool:
    schema = repr(TypeAdapter(model).core_schema)
    return "'float'" in schema or "'decimal'" in schema


def _refused(error: ValidationError, model: type[Any]) -> Poison:
    """Names the fields and what kind of error each has; never a value, nor a key that the payload chose."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    if errors[0]["type"] == "json_invalid":
        return Undecodable("the JSON is nested too deeply or holds what pydantic cannot read")
    names = set(_field_names(TypeAdapter(model).core_schema))
    found = [f"{_spell(e['loc'], names)} {e['type']}" for e in errors[:_ERRORS_NAMED]]
    more = f" and {len(errors) - len(found)} more" if len(errors) > len(found) else ""
    return InvalidEvent(f"{_name(model)!r}: {', '.join(found)}{more}")


def _spell(loc: tuple[int | str, ...], names: set[str]) -> str:
    return "$" + "".join(f".{part}" if part in names else "[...]" for part in loc)


def _field_names(schema: Any) -> Iterator[str]:
    """Every field name and alias that stands in a core schema."""
    if isinstance(schema, dict):
        alias = schema.get("validation_alias")
        if isinstance(alias, str):
            yield alias
        fields = schema.get("fields")
        if isinstance(fields, dict):
            yield from fields
        elif schema.get("type") == "dataclass-args":
            yield from (field["name"] for field in schema["fields"])
        for part in schema.values():
            yield from _field_names(part)
    elif isinstance(schema, list):
        for part in schema:
            yield from _field_names(part)


def _finite(event: Any, model: type[Any]) -> Any:
    if is_finite(event):
        return event
    raise Undecodable(f"{_name(model)!r}: a number is NaN or infinite", reason=Reason.INVALID_NUMBER)


def _name(model: type[Any]) -> str:
    return getattr(model, "__name__", None) or repr(model)
