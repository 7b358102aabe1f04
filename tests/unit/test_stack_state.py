"""The stack's folder: ports that last, an environment file that programs can read, locks between processes."""

import errno
import os
import socket
import uuid
from pathlib import Path
from typing import NoReturn
from uuid import UUID

import pytest

from tidegate.stack.files import write_private
from tidegate.stack.kafka import cluster_id
from tidegate.stack.names import ServerName, StackAddresses
from tidegate.stack.progress import Lines
from tidegate.stack.stack import Stack
from tidegate.stack.state import StackFolder, default_folder, read_env
from tidegate_kernel.errors import Misconfigured

ADDRESSES = {ServerName.KAFKA: "127.0.0.1:1", ServerName.POSTGRES: "postgresql://tidegate:a=b@127.0.0.1:2/tidegate"}


def test_ports_outlive_a_restart(tmp_path: Path) -> None:
    """Addresses that a developer exported yesterday still hold today."""
    home = StackFolder(tmp_path).home(ServerName.KAFKA)
    assert home.ports(2) == home.ports(2)


def test_port_in_use_is_replaced(tmp_path: Path) -> None:
    """Another program may have taken the port meanwhile; the server then moves instead of failing."""
    home = StackFolder(tmp_path).home(ServerName.KAFKA)
    before = home.ports(1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", before[0]))
        taken.listen()
        after = home.ports(1)
    assert after != before
    assert home.ports(1) == after


def test_damaged_ports_file_is_replaced(tmp_path: Path) -> None:
    """A full disk once must not keep the servers down for ever."""
    home = StackFolder(tmp_path).home(ServerName.KAFKA)
    (home.folder / "ports.json").write_text("{")
    assert len(home.ports(2)) == 2


def test_env_file_reads_back_and_is_for_its_owner_only(tmp_path: Path) -> None:
    """It holds a password, and every test reads it."""
    folder = StackFolder(tmp_path)
    folder.write_env(ADDRESSES)
    assert read_env(folder.env_file) == ADDRESSES
    assert folder.env_file.stat().st_mode & 0o777 == 0o600


def test_env_file_without_addresses_is_removed(tmp_path: Path) -> None:
    """A file that names dead servers misleads."""
    folder = StackFolder(tmp_path)
    folder.write_env(ADDRESSES)
    folder.write_env({})
    assert not folder.env_file.exists()


def test_env_names_are_the_settings_that_tidegate_reads(tmp_path: Path) -> None:
    """A name that differs would leave a worker with the default address, and silently."""
    names = [name.setting for name in ServerName]
    expected = ["KAFKA_BOOTSTRAP", "POSTGRES_DSN", "ELASTICSEARCH_URL", "CLICKHOUSE_URL"]
    assert names == [f"TIDEGATE_{name}" for name in expected]


def test_addresses_of_absent_servers_are_empty() -> None:
    """An address made up would be asked, and waited for."""
    found = StackAddresses.of(ADDRESSES)
    assert found == StackAddresses(kafka_bootstrap="127.0.0.1:1", postgres_dsn=ADDRESSES[ServerName.POSTGRES])


def test_only_the_last_user_is_alone(tmp_path: Path) -> None:
    """The stack must not end under another test run."""
    folder = StackFolder(tmp_path)
    with folder.in_use() as alone:
        with folder.in_use() as also_alone:
            assert not also_alone()
        assert alone()


def test_default_folder_lies_in_the_checkout(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two checkouts on one machine must not share servers."""
    module = tmp_path / "tidegate" / "stack" / "state.py"
    module.parent.mkdir(parents=True)
    module.touch()
    monkeypatch.chdir(tmp_path)
    assert default_folder() == tmp_path / ".state" / "stack"


def test_default_folder_of_a_user_lies_in_the_cache_one_per_place(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Whoever installed the wheel gets no folder beside the code, and two services do not share a stack."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    folders = set()
    for service in ("a", "b"):
        (tmp_path / service).mkdir()
        monkeypatch.chdir(tmp_path / service)
        folders.add(default_folder())
    assert len(folders) == 2
    assert all((tmp_path / "cache" / "tidegate" / "stack") in folder.parents for folder in folders)


def test_a_killed_write_leaves_the_file_as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An empty password file, left by a start that was killed, would stop every later start."""
    write_private(tmp_path / "password", "first")

    def killed(descriptor: int, mode: str) -> NoReturn:
        os.close(descriptor)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fdopen", killed)
    with pytest.raises(KeyboardInterrupt):
        write_private(tmp_path / "password", "second")
    assert (tmp_path / "password").read_text() == "first"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EROFS, errno.EACCES])
def test_folder_that_takes_nothing_is_named_with_the_remedy(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk names no file; whoever reads the line should know which disk."""

    def fails(_: StackFolder) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(StackFolder, "locked", fails)
    with pytest.raises(Misconfigured, match=f"{tmp_path}: {os.strerror(number)}; make room"):
        Stack(tmp_path, environment={}).up(Lines())


def test_a_cluster_id_is_never_taken_for_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    """One first start in 64 failed: Kafka's tool read an id with a leading dash as one of its flags."""
    drawn = iter([UUID(bytes=b"\xf8" + bytes(15)), UUID(bytes=bytes(16))])
    monkeypatch.setattr(uuid, "uuid4", lambda: next(drawn))
    assert cluster_id() == "A" * 22
