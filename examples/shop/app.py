"""The shop's background work, all of it: `tidegate run --all --app examples.shop.app:app`."""

import os
from pathlib import Path

from examples.shop.catalogue.discs import AskForDiscs, KeepDisc, fetch_discs, keep_disc
from examples.shop.catalogue.job import disc_catalogue
from examples.shop.customer_value.job import customer_value
from examples.shop.exports.job import expired_exports_job, exports_dependency
from examples.shop.exports.removal import ExpiredExports, RemoveExport, expired_exports, remove_exports
from examples.shop.ledger.job import customer_ledger
from examples.shop.ledger.purchases import RecordPurchase, record_purchases
from examples.shop.order_search.job import order_search
from examples.shop.reconciliation.corrections import Corrections
from examples.shop.reconciliation.differences import CorrectAccount, LedgerDifferences, ledger_differences
from examples.shop.reconciliation.job import nightly_reconciliation
from examples.shop.resources import export_files, shop_resources
from examples.shop.revenue.job import revenue_by_day
from examples.shop.topics import orders_topic
from tidegate import App, __version__, answer, fetch, handle, handle_batch


def shop(prefix: str = "") -> App:
    """The application. `prefix` keeps the names of several shops on the same servers apart."""
    orders = orders_topic(f"{prefix}shop.orders")
    return App(
        service=f"{prefix}shop",
        owner="orders-team",
        version=__version__,
        jobs=[
            customer_ledger(orders),
            order_search(orders, index=f"{prefix}orders"),
            revenue_by_day(orders, table=f"{prefix}revenue".replace("-", "_")),
            customer_value(orders, index=f"{prefix}customer-value"),
        ],
        clock_jobs=[expired_exports_job(), disc_catalogue(), nightly_reconciliation()],
        handlers=[
            handle_batch(RecordPurchase, record_purchases),
            answer(ExpiredExports, expired_exports),
            handle_batch(RemoveExport, remove_exports, calls_outside=True),
            answer(LedgerDifferences, ledger_differences),
            handle(CorrectAccount, Corrections(f"{prefix}shop.ledger-corrections").correct),
            fetch(AskForDiscs, fetch_discs),
            handle(KeepDisc, keep_disc(f"{prefix}shop.discs")),
        ],
        lifespan=shop_resources,
        dependencies=[exports_dependency(export_files())],
        migrations=Path(__file__).with_name("migrations"),
    )


app = shop(os.environ.get("SHOP_PREFIX", ""))
