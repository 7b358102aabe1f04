"""What the person at the terminal can do about an error that Postgres itself raised."""

from __future__ import annotations

import asyncpg

from tidegate.version import __version__


def remedy(error: BaseException) -> tuple[str, bool]:
    """Returns a sentence for the error, the first one of a group, and whether it is a misuse rather than a failure."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    said = str(error).splitlines()[0]  # of Postgres' own words: DETAIL may hold a row's values
    match error:
        case asyncpg.UndefinedTableError() | asyncpg.UndefinedColumnError() | asyncpg.UndefinedFunctionError():
            # Our statements are prepared on our own schema in every build: this database has another.
            return (
                f"postgres does not have the schema of Tidegate {__version__}: {said}; "
                "run 'tidegate migrate', or the version of Tidegate that migrated it"
            ), True
        case asyncpg.InsufficientPrivilegeError():
            return (
                f"postgres: {said}; connect as a role that the schema's owner has given what commands need: "
                "'tidegate migrate --command-role ROLE'"
            ), True
        case _:
            return f"postgres: {said}", False
