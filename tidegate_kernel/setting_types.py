"""What a setting may say, type by type. A refusal tells what should stand there, and never repeats what does."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, SecretStr

_SHORTEST, _LONGEST = timedelta(milliseconds=1), timedelta(days=1)
DURATION_SHOULD = "should be a number of seconds, from 0.001 to 86400"
# Of Kafka's protocol: sizes are signed 32-bit numbers.
_MOST_BYTES = 2**31 - 1

_DAY, _MOST_DAYS = 86_400.0, 36_525
_KEPT = re.compile(r"(?P<days>\d{1,9})d|p(?P<iso_days>\d{1,9})d|(?P<seconds>\d{1,12}(\.\d{1,9})?)")
_HOST = re.compile(r"(?P<name>\[[^\s\[\]]+\]|[^\s\[\]:/?#@]*)(?::(?P<port>\d{1,5}))?")
_INSTANCE = re.compile(r"[A-Za-z0-9._-]{1,249}")


def _from_seconds(value: Any) -> Any:
    """A variable says `20` or `1.5`; anything else is left to pydantic, which knows ISO 8601 (`PT20S`)."""
    try:
        return timedelta(seconds=float(value))
    except (TypeError, ValueError, OverflowError):
        return value


def _kept(value: Any) -> Any:
    """A time in days or seconds; None for never. What is no text is pydantic's."""
    if not isinstance(value, str):
        return value
    text = value.strip().lower()
    if text in ("0", "never"):
        return None
    found = _KEPT.fullmatch(text)
    days = 0.0 if found is None else float(found["days"] or found["iso_days"] or float(found["seconds"]) / _DAY)
    if not 1 <= days <= _MOST_DAYS:
        raise ValueError("should be a number of days, as 90d, P90D or 7776000 (seconds), at least 1, or never")
    return timedelta(days=days)


def _plain(text: str) -> str:
    if any(character < " " or character == "\x7f" for character in text):
        raise ValueError("should hold no line break and no other control character")
    return text


def _plain_secret(secret: SecretStr) -> SecretStr:
    _plain(secret.get_secret_value())
    return secret


def _named(text: str) -> str:
    if not text.strip():
        raise ValueError("should not be empty")
    return text


def _none_if_blank(value: Any) -> Any:
    return None if isinstance(value, str) and not value.strip() else value


def _not_negative(value: int | None) -> int | None:
    if value is not None and value < 0:
        raise ValueError("should be 0 or more")
    return value


def _hosts(text: str, *, may_be_nameless: bool = False) -> Sequence[str]:
    """The `host:port` items of `text`. Raises ValueError if one is none."""
    items = [item.strip() for item in text.split(",")]
    for item in items:
        found = _HOST.fullmatch(item)
        if not found or not (found["name"] or may_be_nameless) or int(found["port"] or 1) not in range(1, 65536):
            raise ValueError
    return items


def _brokers(text: str) -> str:
    try:
        return ",".join(_hosts(text))
    except ValueError:
        raise ValueError("should be host:port, several of them separated by commas") from None


def _postgres(secret: SecretStr) -> SecretStr:
    """A DSN that means what it says: a password with a `/` in it would be taken for a port and be told to everybody."""
    scheme, _, rest = _plain(secret.get_secret_value()).partition("://")
    authority, path, query = re.fullmatch(r"([^/?#]*)([^?#]*)(.*)", rest).groups()  # type: ignore[union-attr]  # matches all
    try:
        _hosts(authority.rpartition("@")[2], may_be_nameless=True)
    except ValueError:
        path = "@"
    if scheme not in ("postgresql", "postgres") or "@" in path or any("=" not in p for p in _parameters(query)):
        raise ValueError(
            "should be of the form postgresql://user:password@host:5432/database, "
            "with other characters than letters and digits escaped, as %2F for /"
        )
    return secret


def _parameters(query: str) -> Sequence[str]:
    return query.removeprefix("?").split("&") if query else []


def _web(value: str) -> str:
    try:
        parts = urlsplit(_plain(value))
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            raise ValueError
    except ValueError:
        # The library's words quote the port, which may be a password.
        raise ValueError("should be an address, as in http://127.0.0.1:9200") from None
    if "@" in parts.netloc:
        raise ValueError(
            "should hold no credentials: addresses are printed; the …_USER and …_PASSWORD settings are not"
        )
    return value


def _if_given(check: Callable[[str], str]) -> Callable[[str | None], str | None]:
    return lambda value: None if value is None else check(value)


def _instance(value: str) -> str:
    if not _INSTANCE.fullmatch(value):
        raise ValueError("should be 1 to 249 letters, digits, dots, dashes or underscores")
    return value


Duration = Annotated[timedelta, BeforeValidator(_from_seconds), Field(ge=_SHORTEST, le=_LONGEST)]
"""Seconds in a variable, from a millisecond to a day."""

Keeping = Annotated[timedelta | None, BeforeValidator(_kept)]
"""How long something is kept, a day at least: `90d`, `P90D` or seconds; `never` (or 0) lets it go never: None."""

Size = Annotated[int, Field(gt=0, le=_MOST_BYTES)]
"""Bytes."""

Text = Annotated[str, AfterValidator(_plain)]
"""One line; may be empty."""

Name = Annotated[str, AfterValidator(_plain), AfterValidator(_named)]
"""One line that says something."""

Secret = Annotated[SecretStr, AfterValidator(_plain_secret)]
"""One line that is never shown. The line break that `echo` adds to a password is refused, not sent."""

Brokers = Annotated[str, AfterValidator(_brokers)]
"""`host:port`, several separated by commas."""

PostgresDsn = Annotated[SecretStr, AfterValidator(_postgres)]
"""`postgresql://…`, also with several hosts."""

Web = Annotated[str, AfterValidator(_web)]
"""An http address without credentials."""

OptionalWeb = Annotated[str | None, BeforeValidator(_none_if_blank), AfterValidator(_if_given(_web))]
OptionalCount = Annotated[int | None, BeforeValidator(_none_if_blank), AfterValidator(_not_negative)]
OptionalFile = Annotated[Path | None, BeforeValidator(_none_if_blank)]
OptionalInstance = Annotated[str | None, BeforeValidator(_none_if_blank), AfterValidator(_if_given(_instance))]
"""An empty variable is how some orchestrators say that there is none."""
