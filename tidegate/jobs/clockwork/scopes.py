"""Whose data a run works on: a tenant and brand at a time, or all at once where the job says why."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import quote, unquote

from tidegate.jobs.text import Words
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import NO_SCOPE, Scope


@dataclass(frozen=True, slots=True)
class AcrossScopes:
    """One run works on the data of all tenants and brands, because of `reason`; also where a service has none."""

    reason: Words

    def __post_init__(self) -> None:
        if not str(self.reason).strip():
            raise Misconfigured("AcrossScopes needs a reason: why may one run see every tenant's data?")


ScopeSource: TypeAlias = Callable[[Any], Awaitable[Sequence[Scope]]]
"""Asked with the App's `deps` whenever the job is due; each scope it returns gets a run of its own."""

Scopes: TypeAlias = Sequence[Scope] | ScopeSource | AcrossScopes


# Percent-encoded, both names and those of service and job still make a key of an index.
_LONGEST_NAME_BYTES = 200


def is_storable(text: str) -> bool:
    """Whether a text column of Postgres can hold it: no NUL, no lone surrogates."""
    try:
        return b"\0" not in text.encode()
    except UnicodeEncodeError:
        return False


def check_scope(job: str, scope: Scope) -> None:
    """Raises Misconfigured for a tenant or brand whose name Postgres cannot keep, or is too long for a lease."""
    for name in scope.tenant, scope.brand:
        if not is_storable(name) or len(name.encode()) > _LONGEST_NAME_BYTES:
            raise Misconfigured(
                f"job {job!r}: {name[:80]!r} is no name of a tenant or brand: at most {_LONGEST_NAME_BYTES} bytes of "
                "UTF-8 without NUL"
            )


async def scopes_of(job: str, scopes: Scopes, deps: Any) -> Sequence[Scope]:
    """Returns the scopes that are due now, each once, in a fixed order. Raises Misconfigured as `check_scope`.

    Raises whatever a ScopeSource does.
    """
    if isinstance(scopes, AcrossScopes):
        return [NO_SCOPE]
    listed = await scopes(deps) if callable(scopes) else scopes
    if NO_SCOPE in listed:
        raise Misconfigured(f"job {job!r}: scopes hold one without tenant and brand; AcrossScopes(reason) says that")
    for scope in listed:
        check_scope(job, scope)
    return sorted(set(listed), key=lambda scope: (scope.tenant, scope.brand))


def lock_name(service: str, lock_key: str, scope: Scope) -> str:
    """The lease of whoever runs under `lock_key` for that scope; names of tenants cannot make two of them one."""
    return "job:" + "/".join(quote(part, safe="") for part in (service, lock_key, scope.tenant, scope.brand))


def service_of(lock: str) -> str:
    """The service whose lease that is."""
    return unquote(lock.removeprefix("job:").partition("/")[0])
