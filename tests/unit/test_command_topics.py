"""Which topics an application needs, and how they are created."""

import pytest

from tests.acceptance.apps import small
from tidegate.commands.topics import planned
from tidegate.jobs.topic_plan import Use
from tidegate_kernel.errors import Misconfigured


def test_every_source_and_every_job_has_its_topic_once() -> None:
    """A job whose topic is forgotten has nowhere to send its dead letters."""
    found = {topic.name: (topic.use, topic.partitions) for topic in planned(small.app, ["small.payments:9", "x"])}
    assert found == {
        "small.payments": (Use.SOURCE, 2),
        "small.ledger.dlq": (Use.DEAD_LETTERS, 3),
        "small.search.dlq": (Use.DEAD_LETTERS, 3),
        "x": (Use.PUBLISHED, 8),
        "tidegate.audit": (Use.AUDIT, 1),
    }


def test_dead_letters_are_never_dropped_by_age() -> None:
    """The index of dead letters is rebuilt from the topic; a letter may wait for months."""
    letters = [topic for topic in planned(small.app, []) if topic.use is Use.DEAD_LETTERS]
    assert {topic.config["retention.ms"] for topic in letters} == {"-1"}
    assert {topic.config["cleanup.policy"] for topic in letters} == {"delete"}


@pytest.mark.parametrize("text", ["", ":3", "x:0", "x:many", "x:-1"])
def test_malformed_extra_topic_shows_the_form(text: str) -> None:
    """An example is quicker than a grammar."""
    with pytest.raises(Misconfigured, match="NAME:PARTITIONS"):
        planned(small.app, [text])
