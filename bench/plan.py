"""What a run is asked for, and what it answers: both pass between processes as JSON."""

from __future__ import annotations

import msgspec

from bench.stub import BATCH_SIZE, Reading


class Plan(msgspec.Struct, kw_only=True):
    """What to run. `service` names group and job; the inbox is the (fresh) database of the environment."""

    contestant: str
    topic: str = ""
    service: str = ""
    events: int = 0
    batch_size: int = BATCH_SIZE
    lanes: int = 2
    sink_delay: float = 0.0
    is_silent: bool = False
    """Nothing is logged."""
    loop: str = "uvloop"

    def on(self, topic: str, events: int) -> Plan:
        """The same for a topic and a number of events."""
        return msgspec.structs.replace(self, topic=topic, events=events)


class Result(msgspec.Struct, kw_only=True):
    """What a run measured. Postgres: time of the backends of this run, and the log they wrote; 0 if not known."""

    events: int
    seconds: float
    cpu_seconds: float
    postgres_cpu_seconds: float = 0.0
    wal_bytes: int = 0

    @property
    def rate(self) -> float:
        return self.events / self.seconds


def result_of(reading: Reading) -> Result:
    """Without what Postgres had to do."""
    return Result(events=reading.events, seconds=reading.seconds, cpu_seconds=reading.cpu_seconds)
