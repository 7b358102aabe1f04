"""From the disc company's answer to rows of the catalogue, and an event for each price that has changed."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from examples.shop.resources import Shop
from tidegate import Context, Pull, Pulled, Rejected

# A version that is older than what is there changes nothing: a provider may read from a copy of its own that lags.
_KEEP_DISC = """
WITH before AS (
    SELECT price_cents FROM disc WHERE tenant = $1 AND brand = $2 AND disc_id = $3
)
INSERT INTO disc (tenant, brand, disc_id, title, price_cents, is_withdrawn, changed_at)
VALUES ($1, $2, $3, $4, $5, $6, $7)
ON CONFLICT (tenant, brand, disc_id) DO UPDATE
SET title = excluded.title, price_cents = excluded.price_cents, is_withdrawn = excluded.is_withdrawn,
    changed_at = excluded.changed_at
WHERE disc.changed_at < excluded.changed_at
RETURNING (SELECT price_cents FROM before) IS DISTINCT FROM $5 AS is_repriced
"""


class Disc(msgspec.Struct, frozen=True):
    """A disc as the company has it since `changed_at`."""

    id: str
    title: str
    price_cents: int
    changed_at: datetime
    withdrawn: bool = False


class Answer(msgspec.Struct, frozen=True):
    """A page of discs, those that changed last at the end. `next`: what the page behind it is called."""

    discs: list[Disc]
    next: str | None = None


class DiscRepriced(msgspec.Struct, frozen=True):
    """Published for everybody who shows prices."""

    disc_id: str
    price_cents: int


@dataclass(frozen=True, slots=True)
class AskForDiscs:
    """What has changed in the company's catalogue."""

    pull: Pull


@dataclass(frozen=True, slots=True)
class KeepDisc:
    """Take over a disc's state."""

    disc: Disc


def disc_id(disc: Disc) -> str:
    return disc.id


def disc_version(disc: Disc) -> str:
    return disc.changed_at.astimezone(UTC).isoformat()


async def fetch_discs(query: AskForDiscs, deps: Shop) -> Pulled:
    """One call of the company."""
    pull = query.pull
    params = {"limit": str(pull.limit), "brand": pull.scope.brand}
    if pull.since is not None:
        params["changed_since"] = pull.since.isoformat()
    if pull.after is not None:
        params["page"] = pull.after
    answer = await deps.discs.api.get("/v1/discs", scope=pull.scope, params=params, etag=pull.etag)
    if answer.is_unchanged:
        return Pulled(is_unchanged=True, as_of=answer.as_of)
    try:
        page = msgspec.convert(answer.content, Answer)
    except msgspec.ValidationError as error:
        raise Rejected("the disc company's answer is no page of discs") from error
    return Pulled(items=page.discs, next_page=page.next, as_of=answer.as_of, etag=answer.etag)


def keep_disc(topic: str) -> Callable[[KeepDisc, Context[Shop]], Awaitable[None]]:
    """The handler that publishes new prices to `topic`."""

    async def keep(command: KeepDisc, ctx: Context[Shop]) -> None:
        disc = command.disc
        if disc.price_cents < 0:
            raise Rejected("a disc cannot have a negative price")
        is_repriced = await ctx.db.fetchval(
            _KEEP_DISC,
            ctx.scope.tenant,
            ctx.scope.brand,
            disc.id,
            disc.title,
            disc.price_cents,
            disc.withdrawn,
            disc.changed_at,
        )
        if is_repriced:
            ctx.publish(topic, DiscRepriced(disc.id, disc.price_cents), key=disc.id, type="disc.repriced")

    return keep
