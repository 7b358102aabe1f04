"""What readers see of the small service's fold."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import httpx

from tests.acceptance.cli import Cli


def index_of(cli: Cli) -> str:
    """The address of the index that the fold's documents stand in."""
    environment = cli.environment
    return f"{environment['TIDEGATE_ELASTICSEARCH_URL']}/{environment['SMALL_PREFIX']}-totals-g1"


def totals(cli: Cli) -> dict[str, int]:
    """Cents by account; nothing where there is no index."""
    httpx.post(f"{index_of(cli)}/_refresh", trust_env=False)
    answer = httpx.get(f"{index_of(cli)}/_search?size=100", trust_env=False)
    hits = answer.json()["hits"]["hits"] if answer.status_code == 200 else []
    return {hit["_source"]["account"]: hit["_source"]["cents"] for hit in hits}


def until(ask: Callable[[], Any], wanted: object, *, seconds: float) -> None:
    """What is asked for is as wanted. Fails with what was found instead."""
    give_up_at = time.monotonic() + seconds
    while (found := ask()) != wanted:
        assert time.monotonic() < give_up_at, found
        time.sleep(0.1)  # other processes: nothing to wait on
