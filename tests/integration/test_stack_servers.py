"""Every server of the stack is the real thing and does what Tidegate's code counts on."""

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import asyncpg
import httpx
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient, NewTopic

from tidegate.stack.names import ServerName, StackAddresses
from tidegate.stack.progress import Silence
from tidegate.stack.stack import Stack
from tidegate.stack.state import default_folder

LONG_AGO_MS = 852_076_800_000  # 1997-01-01


def test_every_server_answers(stack: StackAddresses) -> None:
    """All other tests on servers stand on this one."""
    found = Stack(default_folder()).status()
    assert [each.name for each in found if not each.is_answering] == []


async def test_kafka_keeps_records_of_past_decades(stack: StackAddresses, topic_prefix: str) -> None:
    """Examples and tests replay history: retention by time would delete it within minutes."""
    admin = AIOKafkaAdminClient(bootstrap_servers=stack.kafka_bootstrap)
    producer = AIOKafkaProducer(bootstrap_servers=stack.kafka_bootstrap, enable_idempotence=True)
    await admin.start()
    await producer.start()
    try:
        await admin.create_topics([NewTopic(topic_prefix, 1, 1)])
        await producer.send_and_wait(topic_prefix, b"purchase", timestamp_ms=LONG_AGO_MS)
        configs = await admin.describe_configs([_topic_resource(topic_prefix)])
        settings = {entry[0]: entry[1] for entry in configs[0].resources[0][4]}
        assert settings["retention.ms"] == "-1"
    finally:
        await producer.stop()
        await admin.delete_topics([topic_prefix])
        await admin.close()


async def test_kafka_commits_transactions(stack: StackAddresses, topic_prefix: str) -> None:
    """Read committed means nothing on a broker whose transaction log cannot be written."""
    admin = AIOKafkaAdminClient(bootstrap_servers=stack.kafka_bootstrap)
    producer = AIOKafkaProducer(bootstrap_servers=stack.kafka_bootstrap, transactional_id=topic_prefix)
    consumer = AIOKafkaConsumer(
        bootstrap_servers=stack.kafka_bootstrap, isolation_level="read_committed", auto_offset_reset="earliest"
    )
    for client in (admin, producer, consumer):
        await client.start()
    try:
        await admin.create_topics([NewTopic(topic_prefix, 1, 1)])
        async with producer.transaction():
            await producer.send_and_wait(topic_prefix, b"kept")
        consumer.assign([TopicPartition(topic_prefix, 0)])
        record = await asyncio.wait_for(consumer.getone(), 20)
        assert record.value == b"kept"
    finally:
        await consumer.stop()
        await producer.stop()
        await admin.delete_topics([topic_prefix])
        await admin.close()


async def test_postgres_is_durable_and_asks_for_the_password(stack: StackAddresses) -> None:
    """Crash tests prove nothing where COMMIT does not wait for the disk."""
    connection = await asyncpg.connect(stack.postgres_dsn)
    try:
        assert await connection.fetchval("SHOW fsync") == "on"
        assert int(await connection.fetchval("SHOW max_connections")) >= 200
    finally:
        await connection.close()
    parts = urlsplit(stack.postgres_dsn)
    wrong = stack.postgres_dsn.replace(f":{parts.password}@", ":wrong@")
    try:
        await asyncpg.connect(wrong)
    except asyncpg.InvalidPasswordError:
        return
    raise AssertionError("a wrong password was accepted")


async def test_database_has_the_schema_and_is_the_tests_own(database: str) -> None:
    """Tests that share rows pass or fail by their order."""
    connection = await asyncpg.connect(database)
    try:
        found = await connection.fetchval("SELECT count(*) FROM pg_tables WHERE schemaname = 'tidegate'")
        assert found > 0
    finally:
        await connection.close()


async def test_elasticsearch_refuses_a_stale_external_version(
    stack: StackAddresses, unique_name: Callable[[str], str]
) -> None:
    """Newest wins rests on this."""
    url = f"{stack.elasticsearch_url}/{unique_name('index')}"
    async with httpx.AsyncClient() as client:
        newer = await client.put(f"{url}/_doc/1?version=5&version_type=external_gte", json={"a": 1})
        stale = await client.put(f"{url}/_doc/1?version=4&version_type=external_gte", json={"a": 0})
        await client.delete(url)
    assert (newer.status_code, stale.status_code) == (201, 409)


def test_rows_and_address_survive_down_and_a_taken_port_moves_the_server(tmp_path: Path) -> None:
    """A developer's data is there tomorrow, at the same address; if another program took the port, at another one."""
    own = Stack(tmp_path, names=[ServerName.CLICKHOUSE], environment={})
    try:
        before = own.up(Silence())[ServerName.CLICKHOUSE]
        httpx.post(before, content="CREATE TABLE kept ENGINE = MergeTree ORDER BY () AS SELECT 42 AS answer")
        own.down(wipe=False)
        assert own.up(Silence())[ServerName.CLICKHOUSE] == before
        own.down(wipe=False)
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # closed connections of the port linger
            taken.bind(("127.0.0.1", int(before.rpartition(":")[2])))
            taken.listen()
            moved = own.up(Silence())[ServerName.CLICKHOUSE]
        assert moved != before
        assert httpx.post(moved, content="SELECT answer FROM kept").text == "42\n"
    finally:
        own.down(wipe=True)


def _topic_resource(topic: str) -> object:
    from aiokafka.admin.config_resource import ConfigResource, ConfigResourceType

    return ConfigResource(ConfigResourceType.TOPIC, topic)
