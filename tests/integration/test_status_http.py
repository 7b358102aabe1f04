"""The endpoint of a worker, on a real socket."""

from __future__ import annotations

import signal
import socket
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

import httpx
import pytest

from tidegate.console.http import serve
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.metrics import Metrics
from tidegate_kernel.settings import Settings


@dataclass
class _Told:
    """Health as the test says."""

    dead: list[str] = field(default_factory=list)
    unready: list[str] = field(default_factory=list)

    def live(self) -> Sequence[str]:
        return self.dead

    def ready(self) -> Sequence[str]:
        return self.unready


@pytest.fixture
def health() -> _Told:
    return _Told()


@pytest.fixture
async def client(health: _Told) -> AsyncIterator[httpx.AsyncClient]:
    metrics = Metrics()
    metrics.records.labels("ledger", "orders").inc(7)
    async with (
        serve(Settings(http_port=0), metrics=metrics, health=health) as port,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", trust_env=False) as opened,
    ):
        yield opened


async def test_metrics_are_plain_text_unless_openmetrics_is_asked_for(client: httpx.AsyncClient) -> None:
    """Prometheus takes either, by its header; people and curl read the first."""
    plain = await client.get("/metrics")
    assert plain.headers["content-type"].startswith("text/plain")
    assert 'tidegate_records_total{job="ledger",topic="orders"} 7.0' in plain.text
    asked = await client.get("/metrics", headers={"accept": "application/openmetrics-text; version=1.0.0"})
    assert asked.headers["content-type"].startswith("application/openmetrics-text")
    assert asked.text.endswith("# EOF\n")


async def test_probes_answer_200_while_nothing_is_wrong(client: httpx.AsyncClient) -> None:
    """A probe that fails for nothing gets a healthy worker killed."""
    for path in ("/livez", "/readyz"):
        answer = await client.get(path)
        assert (answer.status_code, answer.json()) == (200, {"ok": True, "problems": []})


async def test_unready_worker_is_not_restarted(client: httpx.AsyncClient, health: _Told) -> None:
    """Case 108: an outage makes a worker unready; killing it would cost a rebalance and cure nothing."""
    health.unready = ["job 'ledger': orders:3 waits to be tried again"]
    ready, live = await client.get("/readyz"), await client.get("/livez")
    assert (ready.status_code, ready.json()["problems"]) == (503, health.unready)
    assert live.status_code == 200


async def test_hanging_worker_is_not_live(client: httpx.AsyncClient, health: _Told) -> None:
    """Nothing else would end it: its partitions stay assigned and nobody reads them."""
    health.dead = ["job 'ledger': a lane has been silent for 300 s"]
    answer = await client.get("/livez")
    assert (answer.status_code, answer.json()["problems"]) == (503, health.dead)


async def test_signals_stay_the_worker_s(client: httpx.AsyncClient) -> None:
    """The server's own handler would end the process without settling what is in hand."""
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    assert (await client.get("/livez")).status_code == 200


async def test_port_in_use_is_one_sentence_with_the_remedy(health: _Told) -> None:
    """Two workers on one machine are the first thing that everybody tries."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(Misconfigured, match=rf"port {port} on 127.0.0.1 is in use; choose another with --port"):
            async with serve(Settings(http_port=port), metrics=Metrics(), health=health):
                pass


async def test_unknown_host_is_one_sentence(health: _Told) -> None:
    """A traceback does not say which setting is wrong."""
    with pytest.raises(Misconfigured, match="TIDEGATE_HTTP_HOST"):
        async with serve(Settings(http_host="198.51.100.7", http_port=0), metrics=Metrics(), health=health):
            pass


async def test_port_is_free_again_afterwards(health: _Told) -> None:
    """A worker that restarts must not find its own port taken."""
    async with serve(Settings(http_port=0), metrics=Metrics(), health=health) as port:
        pass
    async with serve(Settings(http_port=port), metrics=Metrics(), health=health) as again:
        assert again == port
