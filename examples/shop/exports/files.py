"""The files of exports, in one directory. Everything here blocks: handlers call it with `ctx.thread`."""

import asyncio
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

# A directory that a volume is mounted on is there without it, too, and empty: then every file would seem to be gone
# already, and the rows that remember them would be removed.
_MARKER = ".shop-exports"


class ExportsAway(Exception):
    """The directory of exports is not there, or another one is in its place."""


def file_of(export: UUID) -> str:
    """The name of an export's file: nothing but its id, so that no row can name a file elsewhere."""
    return f"{export}.csv"


@dataclass(frozen=True, slots=True)
class ExportFiles:
    """The files in `directory`, which a marker in it tells from an empty mount point."""

    directory: Path

    def make_first(self) -> None:
        """The directory is there, made with its marker, where there was nothing; whatever was there stays as it is."""
        with suppress(OSError):  # what needs it says so
            self.directory.mkdir(parents=True)
            (self.directory / _MARKER).touch()

    def write(self, export: UUID, content: bytes) -> None:
        """The file is on disk, also after a power failure. Raises ExportsAway."""
        with self._opened() as folder:
            flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
            with os.fdopen(os.open(file_of(export), flags, mode=0o600, dir_fd=folder), "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            os.fsync(folder)

    def remove(self, exports: Sequence[UUID], is_given_up: Callable[[], bool] = lambda: False) -> None:
        """None of the files is on disk, also after a power failure. Those that were gone already are no error.

        `is_given_up` is asked before each: whoever waits for a disk that hangs gives up, and its rows are free again.
        Raises ExportsAway, and OSError for a file that cannot be removed.
        """
        with self._opened() as folder:
            for export in exports:
                if is_given_up():
                    return
                with suppress(FileNotFoundError):
                    os.unlink(file_of(export), dir_fd=folder)
            # Before the rows go: a file that came back after a power failure would have nobody left who knows of it.
            os.fsync(folder)

    async def is_there(self) -> bool:
        """Whether the directory is the right one, for whoever waits for it."""
        return await asyncio.to_thread(self._is_there)  # a share whose server is away hangs

    def _is_there(self) -> bool:
        try:
            with self._opened():
                return True
        except ExportsAway:
            return False

    @contextmanager
    def _opened(self) -> Iterator[int]:
        """Yields the directory as it is now: what is mounted over it meanwhile is another one."""
        try:
            folder = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY)
        except OSError as error:
            raise ExportsAway(f"{self.directory}: {error.strerror}") from error
        try:
            _require_marker(folder, self.directory)
            yield folder
        finally:
            os.close(folder)


def _require_marker(folder: int, directory: Path) -> None:
    try:
        os.stat(_MARKER, dir_fd=folder)
    except OSError as error:
        raise ExportsAway(
            f"{directory} has no {_MARKER}: is the volume mounted? If this is the place, 'touch {directory}/{_MARKER}'"
        ) from error
