"""From committed states to writes: pure, and whatever cannot be rendered is told apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from projections.folds.codec import StateCodec
from projections.folds.dirty import Rest, Taken
from projections.sink import Applied, Sink
from projections.writes import Delete, Upsert, Write
from tidegate_kernel.errors import TidegateError

Document = Mapping[str, Any] | msgspec.Struct
"""What a sink keeps of a key."""

Render = Callable[[str, Any], Document]
"""Pure: a key and its state to the document that readers see."""


@dataclass(slots=True)
class Rendered:
    """Encoded writes, each with the key it is of, and the keys that came to none."""

    encoded: list[Any] = field(default_factory=list)
    keys: list[Taken] = field(default_factory=list)
    failed: list[Rest] = field(default_factory=list)

    def applied(self, applied: Applied) -> None:
        """Takes out what the sink has not taken, `failed` tells why."""
        wrong = {refusal.index: refusal.message for refusal in applied.refused}
        wrong |= dict.fromkeys(applied.stale_at, _OLDER_THAN_THE_SINK)
        self.failed += [Rest(self.keys[index].key, self.keys[index].revision, wrong[index]) for index in sorted(wrong)]
        self.keys = [taken for index, taken in enumerate(self.keys) if index not in wrong]


# Unless the key has changed meanwhile, and another renderer was quicker: then it does not rest.
_OLDER_THAN_THE_SINK = (
    "the sink holds a newer version than the state's revision: something else writes to it, or Postgres was restored "
    "to an earlier time; empty the sink and render again"
)


def rendered(taken: Sequence[Taken], codec: StateCodec, render: Render, sink: Sink) -> Rendered:
    """Returns the encoded writes of the keys: their documents, or deletes, at their revisions as versions."""
    made = Rendered()
    for each in taken:
        try:
            encoded = sink.encode(_write(each, codec, render))
        except MemoryError:
            raise  # the machine's trouble, not the key's
        except Exception as error:
            made.failed.append(Rest(each.key, each.revision, _told(error)))
        else:
            made.encoded.append(encoded)
            made.keys.append(each)
    return made


def _write(taken: Taken, codec: StateCodec, render: Render) -> Write:
    if taken.state is None:
        return Delete(id=taken.key, version=taken.revision)
    return Upsert(id=taken.key, version=taken.revision, document=render(taken.key, codec.decode(taken.state)))


def _told(error: Exception) -> str:
    """Our own sentences name fields, never values; those of others may quote the state."""
    name = type(error).__name__
    return f"{name}: {error}" if isinstance(error, TidegateError) else f"the render function raised {name}"
