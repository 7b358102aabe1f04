"""Docker is used only where an engine answers, and looking for one costs nothing elsewhere."""

import socket
from pathlib import Path

import pytest

from tidegate.stack import docker


def test_no_socket_means_no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The usual case in a container: processes are used then, without waiting for anybody."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    assert docker.engine() is None


def test_socket_that_nobody_serves_means_no_engine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A stopped engine leaves its socket behind."""
    path = tmp_path / "left.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{path}")
    assert docker.engine() is None


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_torn_record_counts_as_none(tmp_path: Path, text: str) -> None:
    """A crash while it was written must not stop the next start."""
    (tmp_path / "record.json").write_text(text)
    assert docker.ContainerRecord.read(tmp_path / "record.json") is None
