import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

from pydantic import BaseModel, SecretStr, TypeAdapter

from tidegate import App, Context, Every, HttpProvider, ProviderSyncJob, Pull, Pulled, RateLimit, Scope, fetch, handle


class Price(BaseModel):  # as the supplier has it
    sku: str
    cents: int
    changed_at: str


class Answer(BaseModel):  # a page of its answer, those that changed last at the end
    prices: list[Price]
    next: str | None = None


@dataclass(frozen=True)
class AskForPrices:
    pull: Pull


@dataclass(frozen=True)
class KeepPrice:
    price: Price


@dataclass(frozen=True)
class Deps:  # what the lifespan yields
    supplier: HttpProvider


async def ask(query: AskForPrices, deps: Deps) -> Pulled:  # one call, and no transaction is open
    pull = query.pull
    params = {"limit": str(pull.limit)}
    if pull.since is not None:
        params["changed_since"] = pull.since.isoformat()
    if pull.after is not None:
        params["page"] = pull.after
    said = await deps.supplier.get("/prices", scope=pull.scope, params=params, etag=pull.etag)
    if said.is_unchanged:
        return Pulled(is_unchanged=True, as_of=said.as_of)
    page = TypeAdapter(Answer).validate_python(said.content)
    return Pulled(items=page.prices, next_page=page.next, as_of=said.as_of, etag=said.etag)


async def keep_price(command: KeepPrice, ctx: Context[Deps]) -> None:  # once for each version of a price
    await ctx.db.execute(
        "INSERT INTO price VALUES ($1, $2, $3) ON CONFLICT (tenant, sku) DO UPDATE SET cents = excluded.cents",
        *(ctx.scope.tenant, command.price.sku, command.price.cents),
    )


def key_of_tenant(scope: Scope) -> SecretStr:
    return SecretStr(os.environ[f"SUPPLIER_KEY_{scope.tenant.upper()}"])


@asynccontextmanager
async def resources() -> AsyncIterator[Deps]:
    async with HttpProvider.open_session() as session:
        url = os.environ["SUPPLIER_URL"]
        yield Deps(HttpProvider(name="supplier", url=url, session=session, credentials=key_of_tenant))


def sku_of(item: Price) -> str:
    return item.sku


def version_of(item: Price) -> str:
    return item.changed_at


prices = ProviderSyncJob(
    code="supplier-prices",
    trigger=Every(timedelta(minutes=15)),
    scopes=[Scope("acme")],
    access=[Scope("acme")],  # who may use the provider at all
    provider="supplier",
    rate_limit=RateLimit(10),  # calls a second, over all replicas
    reach_back=timedelta(minutes=5),
    query=AskForPrices,
    command=KeepPrice,
    key=sku_of,
    version=version_of,
    runbook="docs/supplier-prices.md",
)
app = App(
    service="loyalty",
    owner="you",
    clock_jobs=[prices],
    handlers=[fetch(AskForPrices, ask), handle(KeepPrice, keep_price)],
    lifespan=resources,
    migrations=Path(__file__).with_name("migrations"),
)
