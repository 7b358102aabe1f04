"""What the servers hold at the end: every row, document and record, read with plain clients."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import asyncpg
import httpx
from aiokafka import AIOKafkaConsumer, TopicPartition

from tests.chaos.auditor.written import SOURCES, Logged, Place

JOBS = LEDGER, SEARCH, REPORT = ("ledger", "search", "report")
PUBLISHED = "chaos.recorded"
_PAGE = 10_000  # Elasticsearch's own limit
_TIMEOUT = 60.0

_EFFECTS = "SELECT event_id, key, version, cents FROM effect ORDER BY n"
_ACCOUNTS = "SELECT key, events, cents FROM account"
_CLAIMS = """
SELECT j.code, i.bucket, i.id
FROM tidegate.inbox AS i
JOIN tidegate.job AS j ON j.id = i.job
"""
_POSITIONS = """
SELECT j.code, p.topic, p.partition, p.next_offset
FROM tidegate.position AS p
JOIN tidegate.job AS j ON j.id = p.job
WHERE p.run = 0
"""
_LETTERS = """
SELECT j.code, l.topic, l.partition, l."offset", l.key, l.value, l.header_names, l.header_values, l.reason,
    l.id::text AS id, l.state
FROM tidegate.dead_letter AS l
JOIN tidegate.job AS j ON j.id = l.job
"""
_PARKED = """
SELECT j.code, p.event_id, p.topic, p.partition, p."offset", p.key, p.value, p.header_names, p.header_values
FROM tidegate.parked AS p
JOIN tidegate.job AS j ON j.id = p.job
"""
_RUNS = "SELECT id, state FROM tidegate.replay"
_WAITING = "SELECT count(*) FROM tidegate.outbox"


@dataclass(frozen=True)
class Addresses:
    """Where the servers are, past every proxy. Without sinks only the ledger ran."""

    kafka: str
    postgres: str
    elasticsearch: str = ""
    clickhouse: str = ""

    @property
    def jobs(self) -> Sequence[str]:
        return JOBS if self.elasticsearch else (LEDGER,)


@dataclass(frozen=True)
class Found:
    """Everything, as it was read, of the jobs that ran. `letters_published` is by job."""

    jobs: Sequence[str]
    effects: Sequence[Mapping[str, Any]]
    accounts: Sequence[Mapping[str, Any]]
    claims: Sequence[Mapping[str, Any]]
    positions: Sequence[Mapping[str, Any]]
    letters: Sequence[Mapping[str, Any]]
    parked: Sequence[Mapping[str, Any]]
    waiting: int
    documents: Mapping[str, Mapping[str, Any]]
    rows: Sequence[Mapping[str, Any]]
    published: Sequence[Logged]
    letters_published: Mapping[str, Sequence[Logged]]
    runs: Sequence[Mapping[str, Any]] = ()

    def states(self, job: str) -> Mapping[Place, str]:
        """What became of the job's dead letters, by where their records stand."""
        rows = (row for row in self.letters if row["code"] == job)
        return {(row["topic"], row["partition"], row["offset"]): row["state"] for row in rows}


async def read_everything(at: Addresses) -> tuple[Found, Sequence[Logged], Mapping[tuple[str, int], int]]:
    """What is found, the records of the source topics, and where these logs end."""
    connection = await asyncpg.connect(at.postgres, timeout=10)
    try:
        tables = [
            [dict(row) for row in await connection.fetch(q)]
            for q in (_EFFECTS, _ACCOUNTS, _CLAIMS, _POSITIONS, _LETTERS, _PARKED, _RUNS)
        ]
        waiting = await connection.fetchval(_WAITING)
    finally:
        await connection.close()
    documents, rows = await _sinks(at) if at.elasticsearch else ({}, [])
    published, _ = await read_topics(at.kafka, [PUBLISHED])
    letters = {job: (await read_topics(at.kafka, [f"chaos.{job}.dlq"]))[0] for job in at.jobs}
    sources, ends = await read_topics(at.kafka, SOURCES)
    effects, accounts, claims, positions, dead, parked, runs = tables
    found = Found(
        at.jobs, effects, accounts, claims, positions, dead, parked, waiting, documents, rows, published, letters, runs
    )
    return found, sources, ends


async def log_ends(bootstrap: str, topics: Sequence[str]) -> dict[tuple[str, int], int]:
    """The next offset of every partition."""
    consumer = AIOKafkaConsumer(bootstrap_servers=bootstrap, request_timeout_ms=10_000)
    await consumer.start()
    try:
        return await _ends(consumer, topics)
    finally:
        await consumer.stop()


async def read_topics(bootstrap: str, topics: Sequence[str]) -> tuple[list[Logged], dict[tuple[str, int], int]]:
    """All records of the topics, partition by partition in their order, and where the logs end."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=bootstrap, enable_auto_commit=False, max_partition_fetch_bytes=4 * 1024 * 1024
    )
    await consumer.start()
    try:
        ends = await _ends(consumer, topics)
        found: list[Logged] = []
        for (topic, number), end in sorted(ends.items()):
            found += await _read_partition(consumer, TopicPartition(topic, number), end)
        return found, ends
    finally:
        await consumer.stop()


async def _ends(consumer: Any, topics: Sequence[str]) -> dict[tuple[str, int], int]:
    partitions: list[TopicPartition] = []
    for topic in topics:
        await consumer._client.add_topic(topic)
        numbers = consumer.partitions_for_topic(topic) or ()
        partitions += [TopicPartition(topic, number) for number in numbers]
    ends = await consumer.end_offsets(partitions)
    return {(at.topic, at.partition): end for at, end in ends.items()}


async def _read_partition(consumer: Any, partition: TopicPartition, end: int) -> list[Logged]:
    consumer.assign([partition])
    await consumer.seek_to_beginning(partition)
    found: list[Logged] = []
    while await consumer.position(partition) < end:
        for records in (await consumer.getmany(timeout_ms=500)).values():
            found += [
                Logged((r.topic, r.partition, r.offset), r.key, r.value, tuple(r.headers))
                for r in records
                if r.offset < end
            ]
    return found


async def _sinks(at: Addresses) -> tuple[dict[str, dict[str, Any]], list[dict[str, Any]]]:
    async with httpx.AsyncClient(timeout=_TIMEOUT, trust_env=False) as http:
        return await _documents(http, at.elasticsearch), await _rows(http, at.clickhouse)


async def _documents(http: httpx.AsyncClient, url: str) -> dict[str, dict[str, Any]]:
    """All documents that readers of the alias see, by id."""
    (await http.post(f"{url}/chaos/_refresh")).raise_for_status()
    found: dict[str, dict[str, Any]] = {}
    query: dict[str, Any] = {"size": _PAGE, "sort": [{"key": "asc"}], "track_total_hits": False}
    while True:
        answer = (await http.post(f"{url}/chaos/_search", json=query)).raise_for_status().json()
        hits = answer["hits"]["hits"]
        if not hits:
            return found
        found |= {hit["_id"]: hit["_source"] for hit in hits}
        query["search_after"] = hits[-1]["sort"]


async def _rows(http: httpx.AsyncClient, url: str) -> list[dict[str, Any]]:
    """All rows that readers of the view see."""
    query = "SELECT key, toString(version) AS version, toString(cents) AS cents, event_id FROM chaos FORMAT JSONEachRow"
    answer = (await http.post(url, content=query)).raise_for_status()
    return [json.loads(line) for line in answer.text.splitlines()]
