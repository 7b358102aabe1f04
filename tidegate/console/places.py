"""Partitions and records as people type them."""

from __future__ import annotations

from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import TopicPartition


def partition_of(text: str) -> TopicPartition:
    """The partition that TOPIC:P names. Raises Misconfigured showing the form."""
    topic, _, number = text.rpartition(":")
    if not topic or not _is_number(number):
        raise Misconfigured(f"{text!r} names no partition; the form is TOPIC:PARTITION, as in orders:3")
    return TopicPartition(topic, int(number))


def place_of(text: str) -> tuple[TopicPartition, int]:
    """Partition and offset that TOPIC:P:OFFSET names. Raises Misconfigured showing the form."""
    where, _, offset = text.rpartition(":")
    topic, _, number = where.rpartition(":")
    if not topic or not _is_number(number) or not _is_number(offset):
        raise Misconfigured(f"{text!r} names no record; the form is TOPIC:PARTITION:OFFSET, as in orders:3:18277")
    return TopicPartition(topic, int(number)), int(offset)


def _is_number(text: str) -> bool:
    # Nineteen digits may still be more than Kafka's 64 bits; eighteen never are.
    return text.isascii() and text.isdigit() and len(text) <= 18
