"""How the stories end that cannot be carried out."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from examples.shop.demo.place import TrialFailed

T = TypeVar("T")


def carried_out(name: str, story: Coroutine[Any, Any, T]) -> T:
    """Returns what the story does. Ends the process with 130 after Ctrl-C, with 2 and the reason where it failed."""
    try:
        return asyncio.run(story)
    except KeyboardInterrupt:
        print(f"{name}: stopped; the servers stay up, 'make down' ends them", file=sys.stderr)
        sys.exit(130)
    except (TrialFailed, BaseExceptionGroup) as error:
        if (reason := _reason(error)) is None:
            raise
        print(f"{name}: {reason}", file=sys.stderr)
        sys.exit(2)


def _reason(error: BaseException) -> str | None:
    """Why the story could not go on; None for what nobody foresaw."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) if isinstance(error, TrialFailed) else None
