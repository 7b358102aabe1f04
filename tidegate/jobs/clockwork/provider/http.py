"""A provider's HTTP API: one GET a page, and what its answer means. A credential leaves this module in a header alone.

What aiohttp raises never leaves it: such an error holds the request, and the request the credential.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, NoReturn
from urllib.parse import urlsplit

import msgspec
from pydantic import SecretStr

from tidegate.jobs.clockwork.provider.pulling import AccessRefused, PageGone, ProviderAway, Throttled
from tidegate.jobs.clockwork.provider.retry_after import http_date, pause_seconds
from tidegate_kernel.clock import Clock, SystemClock
from tidegate_kernel.errors import Misconfigured, Rejected
from tidegate_kernel.event import Scope

if TYPE_CHECKING:  # a service without a provider does not wait for its client
    import aiohttp

LONGEST_BODY = 16 * 1024 * 1024
"""Bytes of a page: a provider that sends more would fill the memory of the process, not its catalogue."""

Credentials = Callable[[Scope], SecretStr]
"""Asked before each call, so that one that was changed counts at once. Raises whatever it wants."""


_NONE = object()


@dataclass(frozen=True, slots=True)
class HttpAnswer:
    """What a provider answered with. `content`: the JSON of its body; None where `is_unchanged` (304).

    `as_of`: its own time.
    """

    content: Any
    is_unchanged: bool
    etag: str | None
    as_of: datetime | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpProvider:
    """A provider at `url`, whose `name` is told in errors. `credentials` go into `header` as `scheme` and secret.

    Raises Misconfigured for a `url` that is no address of a web server, or holds a credential itself: addresses are
    shown, in logs and by whoever prints this.
    """

    name: str
    url: str
    session: aiohttp.ClientSession = field(repr=False)
    credentials: Credentials = field(repr=False)
    header: str = "Authorization"
    scheme: str = "Bearer"
    timeout: timedelta = timedelta(seconds=20)
    clock: Clock = field(default_factory=SystemClock, repr=False)

    def __post_init__(self) -> None:
        # Nothing of the address is told: what is wrong with it may be its secret.
        try:
            parts = urlsplit(self.url)
        except ValueError:
            raise self._wrong("is no address") from None
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise self._wrong("is no address of a web server; it begins with https:// or http:// and a host")
        if "@" in parts.netloc:
            raise self._wrong("holds a user or a password; leave them to credentials, with scheme='Basic' if need be")
        if parts.query or parts.fragment:
            raise self._wrong("holds a query; get() takes params, and credentials the secret")

    def _wrong(self, what: str) -> Misconfigured:
        return Misconfigured(f"provider {self.name!r}: its url {what}")

    @staticmethod
    def open_session() -> aiohttp.ClientSession:
        """Returns a session for any number of providers, to be entered. It keeps no cookies: they would mix tenants."""
        import aiohttp

        return aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar())

    async def get(self, path: str, *, scope: Scope, params: Mapping[str, str], etag: str | None = None) -> HttpAnswer:
        """Returns the provider's answer to one GET. `etag`: it may say that nothing has changed since.

        Raises Throttled, ProviderAway, AccessRefused, PageGone (410), Rejected for any other answer.
        """
        import aiohttp

        try:
            async with self.session.get(
                f"{self.url.rstrip('/')}{path}",
                params=dict(params),
                headers=self._headers(scope, etag),
                # Whoever redirects us would be told the credential.
                allow_redirects=False,
                timeout=aiohttp.ClientTimeout(total=self.timeout.total_seconds()),
            ) as response:
                return await self._answer(response)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            problem = type(error).__name__
        # Out of the except clause, so that not even the context of what is raised holds the request.
        raise ProviderAway(f"provider {self.name!r} did not answer: {problem}")

    def _headers(self, scope: Scope, etag: str | None) -> Mapping[str, str]:
        secret = f"{self.scheme} {self.credentials(scope).get_secret_value()}".strip()
        if not secret.isprintable():
            raise Rejected(
                f"provider {self.name!r}: the credential of tenant {scope.tenant!r} cannot stand in a header"
            )
        told = {self.header: secret, "Accept": "application/json"}
        return told if etag is None else told | {"If-None-Match": etag}

    async def _answer(self, response: aiohttp.ClientResponse) -> HttpAnswer:
        as_of, etag = http_date(response.headers.get("Date")), response.headers.get("ETag")
        if response.status == 304:
            return HttpAnswer(None, True, etag, as_of)
        if response.status != 200:
            self._refuse(response, as_of or self.clock.now())
        body = await response.content.read(LONGEST_BODY + 1)
        while not response.content.at_eof() and len(body) <= LONGEST_BODY:
            body += await response.content.read(LONGEST_BODY + 1 - len(body))
        if len(body) > LONGEST_BODY:
            raise Rejected(f"provider {self.name!r} answered with more than {LONGEST_BODY} bytes for a page")
        try:
            content = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError):
            content = _NONE
        if content is _NONE:
            # A proxy's page in the place of the answer, mostly: the next call may be answered.
            raise ProviderAway(f"provider {self.name!r} answered with what is no JSON")
        return HttpAnswer(content, False, etag, as_of)

    def _refuse(self, response: aiohttp.ClientResponse, now: datetime) -> NoReturn:
        status, told = response.status, response.headers.get("Retry-After")
        said = f"provider {self.name!r} answered {status}"
        if status == 429 or (status == 503 and told is not None):
            raise Throttled(said, after=pause_seconds(told, now=now))
        if status >= 500 or status in (408, 425):
            raise ProviderAway(said)
        if status in (401, 403):
            raise AccessRefused(f"{said}: it does not take the credential; see that of the tenant")
        if status == 410:
            raise PageGone(f"{said}: the page is gone")
        raise Rejected(f"{said}; it does not understand the question, or the page does not exist")
