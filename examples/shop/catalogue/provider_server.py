"""The disc company: a small HTTP server that behaves as providers do, well and badly.

    python -m examples.shop.catalogue.provider_server --port 9480 --key aurora=…

`GET /v1/discs?brand=&changed_since=&limit=&page=` answers with discs in the order of their last change, so that one
that changes meanwhile comes again at the end. A page is named by the disc it begins behind. Bearer keys, an ETag for
each answer, 304; and whatever `Company.faults` holds is answered first, one call each.
"""

import argparse
import asyncio
import base64
import hashlib
import hmac
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import format_datetime

import msgspec
from aiohttp import web

from examples.shop.catalogue.discs import Answer, Disc


@dataclass(frozen=True, slots=True)
class Fault:
    """Answered in the place of what was asked for. `status` None: the connection is cut off, without an answer."""

    status: int | None
    headers: Mapping[str, str] = field(default_factory=dict)
    body: str = ""
    when: Callable[[Mapping[str, str]], bool] = lambda _: True
    """Of the question's parameters; the first fault of those that are left which it fits is used up by it."""


@dataclass(slots=True)
class Company:
    """What it sells by brand, to whom by key, and what it was asked. `now` is its own clock."""

    keys: Mapping[str, str]
    now: Callable[[], datetime] = lambda: datetime.now(UTC)
    discs: dict[str, dict[str, Disc]] = field(default_factory=dict)
    faults: deque[Fault] = field(default_factory=deque)
    asked: list[dict[str, str]] = field(default_factory=list)
    before_answer: Callable[[], Awaitable[None]] | None = None
    """What happens while somebody waits for his answer."""
    on_answer: Callable[[Mapping[str, str]], None] = lambda _: None
    """Called with the parameters of each page that was answered: what it changes is not in that page any more."""

    def sell(self, brand: str, disc: str, *, title: str = "", price_cents: int = 999, withdrawn: bool = False) -> Disc:
        """The disc is as told from now on."""
        sold = Disc(disc, title or f"Disc {disc}", price_cents, self.now(), withdrawn)
        self.discs.setdefault(brand, {})[disc] = sold
        return sold

    def page(self, brand: str, since: datetime | None, after: str | None, limit: int) -> Answer:
        """Returns the discs of `brand` that have changed `since`, from the place that `after` names on."""
        place = None if after is None else _place(after)
        changed = sorted(self.discs.get(brand, {}).values(), key=_order)
        wanted = [disc for disc in changed if since is None or disc.changed_at >= since]
        behind = [disc for disc in wanted if place is None or _order(disc) > place]
        shown = behind[:limit]
        return Answer(shown, _name(shown[-1]) if len(behind) > limit else None)

    def mend(self, brand: str, disc: str, *, price_cents: int) -> None:
        """The disc has that price from now on, and the company calls it no change."""
        sold = self.discs[brand]
        sold[disc] = msgspec.structs.replace(sold[disc], price_cents=price_cents)

    def tenant_of(self, header: str) -> str | None:
        """Whose key it is."""
        scheme, _, key = header.partition(" ")
        found = [tenant for tenant, known in self.keys.items() if hmac.compare_digest(known.encode(), key.encode())]
        return found[0] if scheme == "Bearer" and found else None


def disc_before(page: str | None) -> str:
    """The disc that the page begins behind, empty for the first page."""
    return "" if page is None else _place(page)[1]


def _order(disc: Disc) -> tuple[datetime, str]:
    return disc.changed_at, disc.id


def _name(disc: Disc) -> str:
    return base64.urlsafe_b64encode(f"{disc.changed_at.isoformat()} {disc.id}".encode()).decode()


def _place(page: str) -> tuple[datetime, str]:
    at, _, disc = base64.urlsafe_b64decode(page).decode().partition(" ")
    return datetime.fromisoformat(at), disc


def application(company: Company) -> web.Application:
    """The server's routes."""

    async def discs(request: web.Request) -> web.StreamResponse:
        asked = dict(request.query)
        etag = request.headers.get("If-None-Match")
        tenant = company.tenant_of(request.headers.get("Authorization", ""))
        told = {"tenant": tenant or "", "etag": etag, "cookie": request.headers.get("Cookie")}
        company.asked.append(asked | {name: text for name, text in told.items() if text is not None})
        if company.before_answer is not None:
            await company.before_answer()
        if (fault := next((each for each in company.faults if each.when(asked)), None)) is not None:
            company.faults.remove(fault)
            return _faulty(request, fault)
        if tenant is None:
            return web.Response(status=401)
        return _answer(company, asked, etag)

    app = web.Application()
    app.router.add_get("/v1/discs", discs)
    return app


def _faulty(request: web.Request, fault: Fault) -> web.Response:
    if fault.status is None:
        if request.transport is not None:
            request.transport.abort()
        return web.Response(status=500)
    # As careless providers do, it repeats what it was told.
    body = fault.body or f"cannot serve {request.headers.get('Authorization')}"
    return web.Response(status=fault.status, headers=fault.headers, text=body)


def _answer(company: Company, asked: Mapping[str, str], etag: str | None) -> web.Response:
    since = asked.get("changed_since")
    try:
        page = company.page(
            asked.get("brand", ""),
            None if since is None else datetime.fromisoformat(since),
            asked.get("page"),
            int(asked.get("limit", "100")),
        )
    except ValueError:
        return web.Response(status=400)
    body = msgspec.json.encode(page)
    headers = {
        "ETag": f'"{hashlib.sha256(body).hexdigest()[:16]}"',
        "Date": format_datetime(company.now().astimezone(UTC), usegmt=True),
    }
    company.on_answer(asked)
    if etag == headers["ETag"]:
        return web.Response(status=304, headers=headers)
    return web.Response(body=body, headers=headers, content_type="application/json")


@asynccontextmanager
async def serving(company: Company, *, port: int = 0) -> AsyncIterator[str]:
    """Yields the address at which the company answers."""
    runner = web.AppRunner(application(company), access_log=None, shutdown_timeout=1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", port)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


async def _main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, default=9480)
    parser.add_argument("--key", action="append", default=[], metavar="TENANT=KEY")
    parser.add_argument("--discs", type=int, default=1000)
    given = parser.parse_args()
    company = Company(dict(each.split("=", 1) for each in given.key))
    for number in range(given.discs):
        company.sell(("classics", "vinyl")[number % 2], f"d{number:05}", price_cents=500 + number % 1500)
    async with serving(company, port=given.port) as url:
        print(f"the disc company answers at {url}/v1/discs")
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(_main())
