"""How a state is kept: as JSON, checked on both ways."""

from __future__ import annotations

from typing import Any

import msgspec
from pydantic import BaseModel, ValidationError

from projections.documents import json_document
from tidegate_kernel.errors import Misconfigured, Poison, Reason

# A state is read and written whole with each batch that changes it: one that grows for ever is a defect of its fold.
_MOST_BYTES = 4 * 1024 * 1024


class StateCodec:
    """States of one type, a msgspec Struct or a pydantic model, from and to JSON."""

    def __init__(self, kind: type[Any]) -> None:
        self._kind = kind
        self._is_model = issubclass(kind, BaseModel)
        if not self._is_model and not issubclass(kind, msgspec.Struct):
            raise Misconfigured(f"state {kind!r} is neither a msgspec Struct nor a pydantic model")
        try:
            self._decoder = msgspec.json.Decoder(dict if self._is_model else kind)
        except TypeError as error:
            raise Misconfigured(f"state {kind.__name__} cannot be JSON: {error}") from error

    def encode(self, state: Any) -> str:
        """Raises Poison for what is no such state, cannot be JSON exactly, or is too large."""
        if not isinstance(state, self._kind):
            raise Poison(
                f"the fold returned {type(state).__name__} instead of {self._kind.__name__} or None",
                reason=Reason.PROJECTION_FAILED,
            )
        plain = state.model_dump(mode="json") if self._is_model else state
        return json_document(plain, _MOST_BYTES).decode()

    def decode(self, text: str) -> Any:
        """Raises Poison if it is no such state: it was kept by code that declared another one."""
        try:
            return self._kind.model_validate_json(text) if self._is_model else self._decoder.decode(text)
        except (msgspec.ValidationError, ValidationError) as error:
            raise Poison(
                f"the state that is kept of this key is no {self._kind.__name__}: give new fields a default, and keep "
                "the types of old ones",
                reason=Reason.PROJECTION_FAILED,
            ) from error
