"""SQL stands in `queries.sql` beside the module that runs it; this reads such a file."""

from __future__ import annotations

from importlib.resources import files

_MARK = "-- name: "


def load_queries(package: str) -> dict[str, str]:
    """Returns every query of `package`'s `queries.sql` by name.

    A query starts at its `-- name: word` line and ends before the next one.
    """
    text = files(package).joinpath("queries.sql").read_text(encoding="utf-8")
    queries: dict[str, str] = {}
    for part in text.split(_MARK)[1:]:
        name, _, body = part.partition("\n")
        if name.strip() in queries:
            raise ValueError(f"{package}/queries.sql: two queries are named {name.strip()!r}")
        queries[name.strip()] = body.strip()
    return queries
