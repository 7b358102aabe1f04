"""The job `disc-catalogue`."""

from datetime import timedelta

from examples.shop.catalogue.discs import AskForDiscs, Disc, KeepDisc, disc_id, disc_version
from examples.shop.catalogue.supplier import KeyHolders
from tidegate import Every, ProviderSyncJob, Pull, RateLimit, Scope, Text

# Who has a contract with the company. Cascade has none.
CUSTOMERS = (Scope("aurora", "classics"), Scope("aurora", "vinyl"), Scope("borealis", "vinyl"))


def ask_for_discs(pull: Pull) -> AskForDiscs:
    return AskForDiscs(pull)


def to_keep_disc(disc: Disc) -> KeepDisc:
    return KeepDisc(disc)


def disc_catalogue() -> ProviderSyncJob:
    """Every quarter of an hour, and a quarter of an hour back: the company's own copies lag by minutes."""
    return ProviderSyncJob(
        code="disc-catalogue",
        trigger=Every(timedelta(minutes=15)),
        provider="disc-company",
        access=CUSTOMERS,
        scopes=KeyHolders(CUSTOMERS),
        rate_limit=RateLimit(10),
        reach_back=timedelta(minutes=15),
        query=ask_for_discs,
        command=to_keep_disc,
        key=disc_id,
        version=disc_version,
        batch_size=200,
        jitter=timedelta(minutes=1),
        freshness_sla=timedelta(hours=1),
        runbook="docs/runbooks/disc-catalogue.md",
        tier="standard",
        purpose=Text(
            en="Brings the disc company's catalogue to every tenant that has a contract with it.",
            ru="Переносит каталог поставщика дисков каждому tenant, у которого с ним договор.",
        ),
    )
