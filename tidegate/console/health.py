"""What the probes ask the process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Health(Protocol):
    """Answers at once, without waiting for any server."""

    def live(self) -> Sequence[str]:
        """Why this process should be restarted; empty while it makes progress."""

    def ready(self) -> Sequence[str]:
        """Why this process does not do its work now; empty when it does."""
