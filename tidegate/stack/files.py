"""Files that are whole or not there, and private."""

import os
from pathlib import Path


def write_private(file: Path, text: str) -> None:
    """The file holds the text, for its owner only; killed in between, it is as it was before."""
    unfinished = file.with_name(f"{file.name}.unfinished")
    descriptor = os.open(unfinished, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as opened:
        opened.write(text)
    unfinished.replace(file)
