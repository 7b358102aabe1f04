"""What Elasticsearch answers to anything but a bulk request, as errors of ours: which index, what, and what to do."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from elasticsearch import ApiError, TransportError, UnsupportedProductError

from projections.elasticsearch_bulk import DENIED
from tidegate_kernel.errors import Misconfigured, Transient


@contextmanager
def translated(index: str) -> Iterator[None]:
    """Inside, the client's errors become Transient where trying again may help, Misconfigured elsewhere."""
    try:
        yield
    except TransportError as error:
        raise Transient(f"index {index!r}: {type(error).__name__}: {error.message}") from error
    except ApiError as error:
        if error.status_code == 429 or error.status_code >= 500:
            raise Transient(f"index {index!r}: {error.status_code} {error.message}") from error
        raise Misconfigured(
            f"index {index!r}: {error.status_code} {error.message}{_cause(error)}{_remedy(error)}"
        ) from error


def _cause(error: ApiError) -> str:
    """What the server says about our declaration; no document is involved."""
    details = error.body.get("error") if isinstance(error.body, dict) else None
    reasons = []
    while isinstance(details, dict):
        reasons.append(str(details.get("reason") or ""))
        # The innermost says what is wrong with it, the outermost where.
        details = details.get("caused_by")
    told = dict.fromkeys(reason[:300] for reason in (reasons[:1] + reasons[-1:]) if reason)
    return "".join(f": {reason}" for reason in told)


def _remedy(error: ApiError) -> str:
    """What to look at, where it is not our declaration that the server refuses."""
    if error.status_code in (401, 403):
        return "; " + DENIED
    if error.status_code == 405 or not isinstance(error.body, dict) or isinstance(error, UnsupportedProductError):
        return "; is TIDEGATE_ELASTICSEARCH_URL the address of an Elasticsearch?"
    if error.status_code == 400:
        return "; compare the declaration with what is there, or declare another index"
    return ""
