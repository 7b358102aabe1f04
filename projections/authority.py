"""Whether a certificate authority's file can be used, said before a client says less."""

from __future__ import annotations

import ssl
from pathlib import Path

from tidegate_kernel.errors import Misconfigured


def authority_file(file: Path | None, *, setting: str) -> str | None:
    """The path as clients take it. Raises Misconfigured, naming `setting`, for a file that holds no certificate."""
    if file is None:
        return None
    try:
        ssl.create_default_context(cafile=file)
    except OSError as error:  # ssl.SSLError is one
        why = error.strerror or type(error).__name__
        raise Misconfigured(f"{setting}: {str(file)!r} cannot be used as a certificate authority: {why}") from error
    return str(file)
