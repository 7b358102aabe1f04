"""How a job reads records: the decoder that it declares, and the order that it keeps."""

from __future__ import annotations

from consumers.decoding import Decoder
from consumers.order import Order
from tidegate.jobs.declaration import ConsumerJob, FoldJob, Job


def decoder_of(job: Job) -> Decoder:
    """Returns what makes events of the records of the job's topics. Raises Misconfigured for a type with two routes."""
    return Decoder({topic.name: topic for topic in job.topics}, job.events, job.unlisted)


def order_of(job: Job) -> Order | None:
    """Returns what tells by which key an event waits behind a dead letter; None where nothing ever waits."""
    return Order(job.order_key) if isinstance(job, ConsumerJob | FoldJob) and job.order == "park" else None
