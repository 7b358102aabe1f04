"""Who may do what: one table of actions and roles, and the check that every change by hand goes through.

Roles contain each other: what a viewer may, an operator may. A token may be limited to tenants and brands; then it does
only deeds that lie within them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID

from tidegate_kernel.errors import Denied

MOST_REASON_CHARACTERS = 1000


class Role(StrEnum):
    """What somebody is trusted with; each may do all that the ones before it may."""

    VIEWER = "viewer"
    OPERATOR = "operator"
    ADMIN = "admin"

    def includes(self, other: Role) -> bool:
        """Whether this role may do what `other` may."""
        order = list(Role)
        return order.index(self) >= order.index(other)


class Action(StrEnum):
    """Everything that somebody can change by hand, or see although it is masked."""

    JOB_PAUSE = "job:pause"
    JOB_RESUME = "job:resume"
    RUN_TRIGGER = "run:trigger"
    RUN_CANCEL = "run:cancel"
    CHECKPOINT_CREATE = "checkpoint:create"
    CHECKPOINT_DELETE = "checkpoint:delete"
    BACKFILL_START = "backfill:start"
    BACKFILL_ABANDON = "backfill:abandon"
    REBUILD_START = "rebuild:start"
    REBUILD_SWAP = "rebuild:swap"
    REBUILD_ABANDON = "rebuild:abandon"
    OFFSETS_SKIP = "offsets:skip"
    OFFSETS_ACCEPT_GAP = "offsets:accept-gap"
    OFFSETS_SET = "offsets:set"
    OFFSETS_ADOPT = "offsets:adopt"
    FLOOD_RELEASE = "flood:release"
    PROJECTION_RESET = "projection:reset"
    PROJECTION_RERENDER = "projection:rerender"
    DLQ_READ_PAYLOAD = "dlq:read-payload"
    DLQ_REPLAY = "dlq:replay"
    DLQ_IMPORT = "dlq:import"
    DLQ_DISCARD = "dlq:discard"
    DLQ_EDIT = "dlq:edit"
    DLQ_ERASE = "dlq:erase"
    TOKEN_CREATE = "token:create"  # noqa: S105  # the name of an act
    TOKEN_REVOKE = "token:revoke"  # noqa: S105  # the name of an act


LEAST_ROLE: Mapping[Action, Role] = MappingProxyType(
    dict.fromkeys(Action, Role.OPERATOR)
    | dict.fromkeys(
        (
            # What moves truth by hand, or changes what an event said, or who may do so.
            Action.OFFSETS_SET,
            Action.OFFSETS_ADOPT,
            Action.PROJECTION_RESET,
            Action.DLQ_DISCARD,
            Action.DLQ_EDIT,
            Action.DLQ_ERASE,
            Action.TOKEN_CREATE,
            Action.TOKEN_REVOKE,
        ),
        Role.ADMIN,
    )
)
"""The least role that may do an action. A viewer may do none of them: reading needs the database alone."""

NEEDS_REASON: frozenset[Action] = frozenset(
    {
        Action.JOB_PAUSE,
        Action.OFFSETS_SKIP,
        Action.OFFSETS_ACCEPT_GAP,
        Action.OFFSETS_SET,
        Action.OFFSETS_ADOPT,
        Action.FLOOD_RELEASE,
        Action.PROJECTION_RESET,
        Action.PROJECTION_RERENDER,
        Action.DLQ_REPLAY,
        Action.DLQ_DISCARD,
        Action.DLQ_EDIT,
        Action.DLQ_ERASE,
        Action.TOKEN_REVOKE,
    }
)
"""Actions whose next reader will ask why."""

# A token is made or revoked within its bearer's scope: `token_deeds` compares the two scopes itself.
_COMPARE_SCOPES_THEMSELVES = frozenset({Action.TOKEN_CREATE, Action.TOKEN_REVOKE})


class Receipt(NamedTuple):
    """A row of the audit by number and hash. Kept elsewhere, it proves later that the row is still there, unchanged."""

    seq: int
    hash: bytes

    def __str__(self) -> str:
        # 64 bits: nobody finds another row with the same beginning.
        return f"{self.seq}:{self.hash.hex()[:16]}"


def _keep_nothing(_: Receipt) -> None:
    return None


@dataclass(frozen=True, slots=True)
class Actor:
    """Who acts, from where, and as what.

    `role` is None for somebody without a valid token; `problem` then says why. `tenants` and `brands` None mean all.
    `on_receipt` gets the audit's receipt of everything that this actor does or is refused.
    """

    name: str
    role: Role | None = None
    tenants: frozenset[str] | None = None
    brands: frozenset[str] | None = None
    origin: str = ""
    token: UUID | None = None
    problem: str = "there is no token"
    on_receipt: Callable[[Receipt], None] = field(default=_keep_nothing, compare=False, repr=False)

    def covers(self, tenant: str | None, brand: str | None) -> bool:
        """Whether the actor's scope contains the scope given; None in it means all tenants, or all brands."""
        return (self.tenants is None or tenant in self.tenants) and (self.brands is None or brand in self.brands)


@dataclass(frozen=True, slots=True)
class Deed:
    """One act: what, on what, why, with which parameters (never payload or secrets), in which scope.

    `tenant` and `brand` None mean that it concerns all of them.
    """

    action: Action
    target: str
    reason: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    tenant: str | None = None
    brand: str | None = None

    def __str__(self) -> str:
        return f"{self.action} of {self.target!r}"


def check(actor: Actor, deed: Deed) -> None:
    """Raises Denied, with the remedy, unless the actor may do the deed and gave a reason where one is needed."""
    _check_role(actor, deed)
    if deed.action not in _COMPARE_SCOPES_THEMSELVES and not actor.covers(deed.tenant, deed.brand):
        raise Denied(
            f"{deed} is refused: token {actor.name!r} is limited to {scope_text(actor.tenants, actor.brands)}, "
            f"and this concerns {_concerned(deed)}: keep to what is within that limit, or take a token that covers it "
            f"('tidegate tokens create NAME --role {LEAST_ROLE[deed.action]}')"
        )
    if len(deed.reason) > MOST_REASON_CHARACTERS:
        raise Denied(f"{deed} is refused: the reason is longer than {MOST_REASON_CHARACTERS} characters")
    if deed.action in NEEDS_REASON and not deed.reason.strip():
        raise Denied(f"{deed} is refused without a reason; say why with --reason")


def scope_text(tenants: frozenset[str] | None, brands: frozenset[str] | None) -> str:
    """A scope for a person: 'tenants a, b; brands x', or 'everything'."""
    named = [("tenants", tenants), ("brands", brands)]
    return "; ".join(f"{word} {', '.join(sorted(names))}" for word, names in named if names is not None) or "everything"


def _check_role(actor: Actor, deed: Deed) -> None:
    least = LEAST_ROLE[deed.action]
    if actor.role is None:
        raise Denied(f"{deed} is refused: {actor.problem}; {_remedy(least)}")
    if not actor.role.includes(least):
        raise Denied(f"{deed} is refused: token {actor.name!r} has role {actor.role}; {_remedy(least)}")


def _remedy(least: Role) -> str:
    return (
        f"set TIDEGATE_TOKEN to a token with role {least}; "
        f"'tidegate tokens create NAME --role {least}' makes one (the first ever: --bootstrap)"
    )


def _concerned(deed: Deed) -> str:
    tenant = "all tenants" if deed.tenant is None else f"tenant {deed.tenant!r}"
    brand = "all brands" if deed.brand is None else f"brand {deed.brand!r}"
    return f"{tenant} and {brand}"
