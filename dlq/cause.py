"""What went wrong, told without anybody's data: class, message, frames, fingerprint."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from hashlib import sha256
from pathlib import PurePath
from types import TracebackType

from tidegate_kernel.errors import Reason, TidegateError

MAX_MESSAGE = 1000
MAX_STACK = 4096

# A word with a digit in it is a number or an id: it tells one record from another, not one failure from another.
_NUMBERED = re.compile(r"[\w.:+-]*\d[\w.:+-]*")


@dataclass(frozen=True, slots=True)
class Cause:
    """The innermost error of a failure. `stack` holds places only, the innermost first, never values."""

    error_class: str
    message: str
    stack: str
    fingerprint: str


def cause_of(
    error: BaseException, reason: Reason, *, handler: str = "", include_foreign_message: bool = False
) -> Cause:
    """Returns what may be stored and published about `error`, which came out of `handler`.

    The fingerprint is the same for failures of one reason, handler, class and place. The words of Tidegate's own errors
    count too (they name the field), but for numbers and ids in them.

    Errors of Tidegate's own tree never hold payload, so their message is kept. The message of any other error may
    quote the record (`ValueError: invalid literal … 'jane@example.org'`): it is replaced by class and place unless
    `include_foreign_message`. That place is in the handler's own package where the error came through there: a line of
    a library says nothing to whoever has to mend the handler.
    """
    chain = list(_chain(error))
    name = root_class(error)
    place = next(_places(chain[-1].__traceback__), "")
    told = next(_places(chain[-1].__traceback__, package=handler.partition(".")[0]), place)
    return Cause(
        error_class=name,
        message=_message(chain, told, include_foreign_message=include_foreign_message)[:MAX_MESSAGE],
        stack=_stack(chain)[:MAX_STACK],
        fingerprint=_fingerprint(reason, handler, name, place, _NUMBERED.sub("#", _own_words(chain)[:MAX_MESSAGE])),
    )


def root_class(error: BaseException) -> str:
    """The class of the error that began it, whatever was wrapped around it."""
    *_, innermost = _chain(error)
    return class_name(innermost)


def class_name(error: BaseException) -> str:
    """The class of `error` with its module, except for Python's own."""
    kind = type(error)
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _chain(error: BaseException) -> Iterator[BaseException]:
    """From the error that arrived to the one that began it; of a group the first member stands for all."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = _beneath(current)


def _beneath(error: BaseException) -> BaseException | None:
    if isinstance(error, BaseExceptionGroup):
        return error.exceptions[0]
    if error.__cause__ is not None:
        return error.__cause__
    return None if error.__suppress_context__ else error.__context__


def _fingerprint(*parts: str) -> str:
    # The lengths keep ("ab", "c") and ("a", "bc") apart.
    spelled = "".join(f"{len(part)}:{part}" for part in parts)
    return sha256(spelled.encode("utf-8", "backslashreplace")).hexdigest()[:16]


def _own_words(chain: list[BaseException]) -> str:
    """What Tidegate's own error says, or the handler in a `Rejected`; empty where there is none."""
    ours = next((error for error in chain if isinstance(error, TidegateError)), None)
    return "" if ours is None else _text(ours)


def _message(chain: list[BaseException], place: str, *, include_foreign_message: bool) -> str:
    text = _own_words(chain) or (_text(chain[-1]) if include_foreign_message else "")
    if text:
        return text
    name = class_name(chain[-1])
    return f"{name} at {place}" if place else name


def _text(error: BaseException) -> str:
    # The standard library's own printer survives an error whose __str__ raises.
    return "".join(traceback.format_exception_only(error)).partition(": ")[2].strip()


def _stack(chain: list[BaseException]) -> str:
    lines = []
    for error in reversed(chain):
        lines.append(class_name(error))
        lines.extend(f"  {place}" for place in _places(error.__traceback__))
    return "\n".join(lines)


def _places(trace: TracebackType | None, *, package: str | None = None) -> Iterator[str]:
    """`file:line function` of each frame, the innermost first; of those in `package` alone, if one is named."""
    for frame, line in reversed(list(traceback.walk_tb(trace))):
        if package is None or str(frame.f_globals.get("__name__")).partition(".")[0] == package:
            yield f"{_short(frame.f_code.co_filename)}:{line} {frame.f_code.co_name}"


@lru_cache(maxsize=1024)
def _short(path: str) -> str:
    # Folder and file tell a reader where to look; the path above them says how the machine is laid out.
    return "/".join(PurePath(path).parts[-2:])
