"""The service that is rolled. It notes each record in its transaction, and beside it whenever the handler sees one."""

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tidegate import App, CloudEvents, ConsumerJob, Context, Event, Json, Topic, handle_batch, on

TOPIC = os.environ["ROLLED_TOPIC"]
# Unbuffered, and each write at the file's end, whichever pod it comes from.
_seen = Path(os.environ["ROLLED_SEEN"]).open("ab", buffering=0)  # noqa: SIM115  # as long as the process

_NOTE = """
INSERT INTO effect (event_id, partition, place)
SELECT * FROM unnest($1::text[], $2::int[], $3::bigint[])
"""


class Placed(msgspec.Struct, frozen=True):
    n: int


@dataclass(frozen=True, slots=True)
class Note:
    n: int


def to_note(event: Event[Placed]) -> Note:
    return Note(event.data.n)


async def note(_: Sequence[Note], ctx: Context[None]) -> None:
    records = [event.record for event in ctx.events]
    _seen.write(b"".join(b"%d %d\n" % (record.partition, record.offset) for record in records))
    ids, partitions = [event.id for event in ctx.events], [record.partition for record in records]
    await ctx.db.execute(_NOTE, ids, partitions, [record.offset for record in records])


# The client tells each generation of its group that it joins, and nobody else does.
_client_log = logging.getLogger("aiokafka.consumer.group_coordinator")
_client_log.setLevel(logging.INFO)
_client_log.addHandler(logging.FileHandler(os.environ["ROLLED_JOINS"]))

app = App(
    service="rolled",
    owner="rollout-team",
    jobs=[
        ConsumerJob(
            code="notes",
            topics=[Topic(TOPIC, format=Json(), envelope=CloudEvents(), partitions=8)],
            unlisted="skip",
            runbook="none",
            events=[on("rolled.placed", Placed, to_note)],
        )
    ],
    handlers=[handle_batch(Note, note)],
    migrations=Path(__file__).with_name("migrations"),
)
