"""How the shop reaches the disc company: its address from the environment, keys from a file of secrets."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import msgspec
from pydantic import SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

from tidegate import HttpProvider, Rejected, Scope


class CatalogueSettings(BaseSettings):
    """Where the disc company is, `SHOP_CATALOGUE_URL`, and the file of keys to it, `SHOP_CATALOGUE_KEYS_FILE`."""

    model_config = SettingsConfigDict(env_prefix="SHOP_CATALOGUE_", frozen=True)

    url: str = "http://127.0.0.1:9480"
    keys_file: Path | None = None


@dataclass(frozen=True, slots=True)
class CatalogueKeys:
    """A key for each tenant, from a JSON file such as `{"aurora": "…"}`, read at each use: a new one counts at once."""

    file: Path | None = None

    def __call__(self, scope: Scope) -> SecretStr:
        """Returns the tenant's key. Raises Rejected where there is none."""
        key = self._all().get(scope.tenant)
        if key is None:
            raise Rejected(f"there is no key of the disc company for tenant {scope.tenant!r}; see {self.file}")
        return key

    def has(self, scope: Scope) -> bool:
        return scope.tenant in self._all()

    def _all(self) -> dict[str, SecretStr]:
        if self.file is None:
            return {}
        try:
            keys = msgspec.json.decode(self.file.read_bytes(), type=dict[str, str])
        except (OSError, msgspec.DecodeError) as error:
            # Not the error itself: it may quote what it could not read.
            raise Rejected(f"SHOP_CATALOGUE_KEYS_FILE: {self.file} cannot be read ({type(error).__name__})") from None
        return {tenant: SecretStr(key) for tenant, key in keys.items()}


@dataclass(frozen=True, slots=True)
class DiscCompany:
    """The company's API, and the keys that it is called with."""

    api: HttpProvider
    keys: CatalogueKeys


class KnowsDiscs(Protocol):
    """What is needed of `ctx.deps` here."""

    @property
    def discs(self) -> DiscCompany: ...


@dataclass(frozen=True, slots=True)
class KeyHolders:
    """Of some customers those whose key is there: nobody else is synchronised yet."""

    customers: Sequence[Scope]

    async def __call__(self, deps: KnowsDiscs) -> Sequence[Scope]:
        return [scope for scope in self.customers if deps.discs.keys.has(scope)]


@asynccontextmanager
async def disc_company() -> AsyncIterator[DiscCompany]:
    """Yields it as the environment names it. Nothing is called before somebody asks."""
    settings = CatalogueSettings()
    keys = CatalogueKeys(settings.keys_file)
    async with HttpProvider.open_session() as session:
        yield DiscCompany(HttpProvider(name="disc-company", url=settings.url, session=session, credentials=keys), keys)
