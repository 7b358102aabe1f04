"""Who may do what, before any database is asked."""

from __future__ import annotations

import pytest

from tidegate_kernel.errors import Denied
from tidegate_kernel.permissions import LEAST_ROLE, NEEDS_REASON, Action, Actor, Deed, Receipt, Role, check, scope_text

WHY = "because"


def _actor(role: Role | None, *, tenants: set[str] | None = None, brands: set[str] | None = None) -> Actor:
    return Actor(
        "anna", role, None if tenants is None else frozenset(tenants), None if brands is None else frozenset(brands)
    )


@pytest.mark.parametrize("action", list(Action))
@pytest.mark.parametrize("role", list(Role))
def test_role_does_what_it_includes_and_no_more(role: Role, action: Action) -> None:
    """The whole table, each cell: a new action cannot be allowed to more than it says."""
    deed = Deed(action, "ledger", WHY)

    if role.includes(LEAST_ROLE[action]):
        check(_actor(role), deed)
    else:
        with pytest.raises(Denied, match=f"role {role}; set TIDEGATE_TOKEN to a token with role {LEAST_ROLE[action]}"):
            check(_actor(role), deed)


@pytest.mark.parametrize("action", list(Action))
def test_without_a_token_nothing_is_allowed(action: Action) -> None:
    """Reading needs none; whatever changes something says where to get one."""
    with pytest.raises(Denied, match=r"there is no token; set TIDEGATE_TOKEN .* 'tidegate tokens create"):
        check(_actor(None), Deed(action, "ledger", WHY))


@pytest.mark.parametrize("action", sorted(NEEDS_REASON))
@pytest.mark.parametrize("reason", ["", "  \n", "x" * 1001])
def test_reason_is_there_and_bounded(action: Action, reason: str) -> None:
    """A blank is no reason, and a novel does not belong into every list of the audit."""
    with pytest.raises(Denied, match="reason"):
        check(_actor(Role.ADMIN), Deed(action, "ledger", reason))


def test_reason_is_free_where_nobody_will_ask() -> None:
    """A checkpoint harms nobody: to ask why would teach people to type 'x'."""
    check(_actor(Role.OPERATOR), Deed(Action.CHECKPOINT_CREATE, "nightly"))


@pytest.mark.parametrize(
    "tenants, brands, tenant, brand, is_covered",
    [
        (None, None, None, None, True),
        (None, None, "acme", "a", True),
        ({"acme"}, None, "acme", None, True),
        ({"acme"}, None, "acme", "a", True),
        ({"acme"}, None, "zeta", None, False),
        ({"acme"}, None, None, None, False),
        ({"acme"}, {"a"}, "acme", None, False),
        ({"acme"}, {"a"}, "acme", "a", True),
        (None, {"a"}, None, "a", True),
        (None, {"a"}, "acme", "b", False),
        ({"acme"}, None, "", None, False),
    ],
)
def test_limited_token_does_what_lies_within_its_scope(
    tenants: set[str] | None, brands: set[str] | None, tenant: str | None, brand: str | None, is_covered: bool
) -> None:
    """G12: a deed on all tenants concerns others too, and one without a tenant is not everybody's."""
    actor = _actor(Role.OPERATOR, tenants=tenants, brands=brands)
    deed = Deed(Action.DLQ_REPLAY, "ledger", WHY, tenant=tenant, brand=brand)

    if is_covered:
        check(actor, deed)
    else:
        with pytest.raises(Denied, match="limited to"):
            check(actor, deed)


def test_receipt_is_short_enough_to_keep_and_long_enough_to_prove() -> None:
    """Sixteen digits: nobody finds another row that begins so."""
    assert str(Receipt(57, bytes(range(32)))) == "57:0001020304050607"


def test_scope_is_told_in_words() -> None:
    """Whoever is refused sees what the token is for."""
    assert scope_text(frozenset({"b", "a"}), frozenset({"x"})) == "tenants a, b; brands x"
    assert scope_text(None, None) == "everything"
