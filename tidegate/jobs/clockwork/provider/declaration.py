"""What an application declares of a job that brings a provider's catalogue here."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from tidegate.jobs.clockwork.declaration import (
    ClockJob,
    Occasion,
    Page,
    PartialFailure,
    Progress,
    require_scopes,
)
from tidegate.jobs.clockwork.schedule import LONGEST
from tidegate.jobs.clockwork.scopes import AcrossScopes
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import Scope

_PROVIDER_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,39}")


@dataclass(frozen=True, slots=True)
class Pull(Page):
    """A page that a run wants of its provider: of all that has changed since `since`, the one that `after` stands for.

    `since` None: of everything there is. `after`: what the provider called the next page; None: the first. `etag`: what
    the provider said of its answer to this very question the last time, so that it may say that nothing has changed.
    """

    since: datetime | None = None
    etag: str | None = None


@dataclass(frozen=True, slots=True)
class RateLimit:
    """At most `calls` in any `per`, over all processes of the service: calls are spaced by `per / calls`."""

    calls: int
    per: timedelta = timedelta(seconds=1)

    def __post_init__(self) -> None:
        if self.calls < 1 or not timedelta(0) < self.per <= LONGEST:
            raise Misconfigured(f"RateLimit({self.calls}, {self.per}): both must be positive, per a time that ends")

    @property
    def spacing(self) -> timedelta:
        return self.per / self.calls


@dataclass(frozen=True, slots=True)
class Circuit:
    """When a provider is left alone: `failures` calls in a row failed, whichever process made them.

    After `rest` one call may try (half-open): if it fails, the rest doubles, up to `longest_rest`.
    """

    failures: int = 5
    rest: timedelta = timedelta(seconds=15)
    longest_rest: timedelta = timedelta(minutes=5)

    def __post_init__(self) -> None:
        if self.failures < 1 or not timedelta(0) < self.rest <= self.longest_rest <= LONGEST:
            raise Misconfigured(
                f"{self}: failures and rest must be positive, longest_rest not below rest, and a time that ends"
            )


@dataclass(frozen=True, kw_only=True)
class ProviderSyncJob(ClockJob):
    """Brings a provider's catalogue here, page by page. `ClockJob` explains the other fields.

    `query(pull)` (pure) makes the query of a page, whose `fetch(…)` handler calls the provider once, outside of any
    transaction. `key(item)` names the item, `version(item)` its state: an item is done once for each version, whatever
    run meets it again. That is never forgotten.

    `access`: the scopes that may use the provider; a run for any other is refused before the provider is called.
    `reach_back`: how long before the start of the last successful run the next one begins to read. A failure stops the
    run, unless `partial_failure` says otherwise: its cursor must not pass what it has not got. `checkpoint` "job": also
    the next occasion's run goes on at the page where a broken one stopped, with that one's question; "run": only its
    retries do. `rate_limit` and `circuit` are the provider's: jobs of one provider say the same.
    """

    provider: str
    access: Sequence[Scope]
    rate_limit: RateLimit
    reach_back: timedelta
    version: Callable[[Any], str]
    query: Callable[[Pull], Any]  # type: ignore[assignment]  # asked with more than a Page
    circuit: Circuit = field(default_factory=Circuit)
    partial_failure: PartialFailure = "stop"
    checkpoint: Progress = "job"
    max_duration: timedelta = timedelta(minutes=30)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not _PROVIDER_NAME.fullmatch(self.provider):
            raise self.wrong("provider", f"{self.provider!r} may hold lower-case letters, digits, '_' and '-'")
        require_scopes(self, "access", self.access)
        if not self.access:
            raise self.wrong("access", "is empty: nobody may use the provider")
        self.check_span("reach_back")
        if self.reach_back < timedelta(0):
            raise self.wrong("reach_back", f"must not be negative, as {self.reach_back}")
        if isinstance(self.scopes, AcrossScopes):
            raise self.wrong("scopes", "must name tenants: access to a provider is a tenant's")
        if not callable(self.scopes) and (closed := set(self.scopes) - set(self.access)):
            raise self.wrong("scopes", f"hold {_named(closed)}, for which access does not open the provider")

    @property
    def forgets_items(self) -> bool:
        return False

    def no_access(self, scope: Scope) -> str:
        """Why a run for `scope` is refused."""
        return f"job {self.code!r}: tenant {scope.tenant!r} has no access to provider {self.provider!r}"

    def item_identity(self, item: Any, occasion: Occasion) -> str:
        if self.idempotency_key is not None:
            return self.idempotency_key(item, occasion)
        # The first space ends the key: else key "lp" of version "1 mono" and "lp 1" of "mono" would be one item.
        key = f"{self.key(item)}".replace("%", "%25").replace(" ", "%20")
        return f"{key} {self.version(item)}"


def _named(scopes: Collection[Scope]) -> str:
    return ", ".join(sorted(f"{each.tenant}/{each.brand}" if each.brand else each.tenant for each in scopes))
