"""The address of a provider is shown, by whoever prints or logs it: it must hold no secret."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import SecretStr

from tidegate import HttpProvider
from tidegate_kernel.errors import Misconfigured

SESSION: Any = object()


def provider(url: str) -> HttpProvider:
    return HttpProvider(name="discs", url=url, session=SESSION, credentials=lambda _: SecretStr("hush"))


@pytest.mark.parametrize(
    "url",
    [
        "https://anna:hush-hush@discs.example",
        "https://hush-hush@discs.example/api",
        "https://discs.example/api?key=hush-hush",
        "https://[hush-hush",
        "ftp://hush-hush",
        "hush-hush",
    ],
)
def test_address_with_a_secret_in_it_is_refused_without_telling_it(url: str) -> None:
    """G13: a repr in a log would tell it, and aiohttp refuses it at each call beside a header anyway."""
    with pytest.raises(Misconfigured, match="provider 'discs': its url") as refused:
        provider(url)

    assert "hush" not in str(refused.value)
    assert refused.value.__cause__ is None
    assert refused.value.__suppress_context__ or refused.value.__context__ is None


def test_plain_address_is_taken_and_shown() -> None:
    """With a port and a path; the session and the credentials are not shown."""
    shown = repr(provider("https://discs.example:8443/api"))

    assert "https://discs.example:8443/api" in shown
    assert "hush" not in shown
