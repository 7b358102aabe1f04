"""ClickHouse's HTTP interface over the engine in its library, as far as clickhouse-connect's clients use it.

`python -m tidegate.stack.clickhouse_front --path DIR --port N`. One process may open a data folder. Known differences
from the server: no users, no sessions, no external data, no response compression, and a result is complete before its
first byte is sent (so `wait_end_of_query` holds always).
"""

import argparse
import asyncio
import json
import queue
import re
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import chdb
import cramjam
from aiohttp import web

# As many statements run at once: enough that a slow one does not hold up the others, and few threads for two cores.
_CONNECTIONS = 4
# What the HTTP interface itself understands; everything else in the query string is a setting of the statement.
_TRANSPORT = frozenset(
    {
        "add_http_cors_header",
        "buffer_size",
        "client_protocol_version",
        "compress",
        "database",
        "decompress",
        "default_format",
        "enable_http_compression",
        "http_headers_progress_interval_ms",
        "password",
        "query",
        "query_id",
        "quota_key",
        "role",
        "send_progress_in_http_headers",
        "session_check",
        "session_id",
        "session_timeout",
        "stacktrace",
        "user",
        "wait_end_of_query",
    }
)
# Statements that carry their rows in the body: INSERT INTO t (columns) [SETTINGS …] FORMAT name, a line end, the rows.
_INSERT = re.compile(
    rb"\A\s*(?P<target>INSERT\s+INTO\s.+?)(?P<settings>\sSETTINGS\s.+?)?"
    rb"\sFORMAT\s+(?P<format>(?!VALUES\b)\w+)[ \t]*\r?\n",
    re.IGNORECASE | re.DOTALL,
)
_INSERT_HEAD_BYTES = 256 * 1024  # a statement's own text is shorter; the rows behind it may be anything
_FORMAT = re.compile(r"\sFORMAT\s+(\w+)\s*;?\s*\Z", re.IGNORECASE)
_CODE = re.compile(r"Code: (\d+)\.")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")
# The server's own HTTP status for some codes; any other is 500.
_STATUS = {36: 400, 47: 404, 60: 404, 62: 400, 81: 404, 115: 404, 241: 500, 497: 403, 516: 401}
_DECOMPRESSORS: Mapping[str, Any] = {
    "br": cramjam.brotli.decompress,
    "deflate": cramjam.zlib.decompress,
    "gzip": cramjam.gzip.decompress,
    "lz4": cramjam.lz4.decompress,
    "zstd": cramjam.zstd.decompress,
}


@dataclass(frozen=True)
class Statement:
    """One statement with all that came along: its rows (for an INSERT), parameters and settings."""

    body: bytes
    database: str = "default"
    default_format: str = "TabSeparated"
    parameters: dict[str, str] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Result:
    """What a statement returned: `body` in the ClickHouse format `format`, and the counts for the summary header."""

    body: bytes
    format: str
    summary: dict[str, str]


class Refused(Exception):
    """A statement that the engine or this front does not take; `code` is ClickHouse's."""

    def __init__(self, message: str, *, code: int) -> None:
        super().__init__(message)
        self.code = code


class Engine:
    """The engine on one data folder, usable from several threads."""

    def __init__(self, path: Path) -> None:
        path.mkdir(parents=True, exist_ok=True)
        self._rows = path / "tidegate_rows"  # beside the data, so that both lie on one disk
        self._rows.mkdir(exist_ok=True)
        for leftover in self._rows.iterdir():
            leftover.unlink()
        self._idle: queue.SimpleQueue[Any] = queue.SimpleQueue()
        for _ in range(_CONNECTIONS):
            connection = chdb.connect(str(path))
            # The library switches this on for its own users; a server has it off.
            connection.query("SET implicit_select = 0")
            self._idle.put(connection)
        self.time_zone = self.run(Statement(b"SELECT timezone()")).body.decode().strip()

    def run(self, statement: Statement) -> Result:
        """The statement's result. Blocks while all connections are busy; raises Refused with ClickHouse's code."""
        connection = self._idle.get()
        insert = _INSERT.match(statement.body[:_INSERT_HEAD_BYTES])
        try:
            with _settings(connection, statement):
                return self._insert(connection, statement, insert) if insert else _query(connection, statement)
        except RuntimeError as failure:
            message = str(failure)
            code = _CODE.search(message)
            raise Refused(message, code=int(code[1]) if code else 1002) from failure
        finally:
            self._idle.put(connection)

    def close(self) -> None:
        """Waits for running statements and writes what is pending."""
        for _ in range(_CONNECTIONS):
            self._idle.get().close()

    def _insert(self, connection: Any, statement: Statement, insert: re.Match[bytes]) -> Result:
        with tempfile.NamedTemporaryFile(dir=self._rows) as rows:
            rows.write(memoryview(statement.body)[insert.end() :])
            rows.flush()
            target, chosen_format = insert["target"].decode(), insert["format"].decode()
            settings = (insert["settings"] or b"").decode()
            query = f"{target} FROM INFILE '{rows.name}' COMPRESSION 'none'{settings} FORMAT {chosen_format}"
            result = connection.query(query, "TabSeparated", params=statement.parameters)
        written = {"written_rows": str(result.rows_read()), "written_bytes": str(result.bytes_read())}
        return Result(b"", statement.default_format, written)


def _query(connection: Any, statement: Statement) -> Result:
    text = statement.body.decode()
    result = connection.query(text, statement.default_format, params=statement.parameters)
    chosen = _FORMAT.search(text)
    read = {"read_rows": str(result.rows_read()), "read_bytes": str(result.bytes_read())}
    return Result(bytes(result.bytes()), chosen[1] if chosen else statement.default_format, read)


@contextmanager
def _settings(connection: Any, statement: Statement) -> Iterator[None]:
    """The connection has the statement's database and settings inside, and plain ones again afterwards."""
    database = statement.database.replace("\\", "\\\\").replace("`", "\\`")
    connection.query(f"USE `{database}`")
    if not statement.settings:
        yield
        return
    try:
        connection.query(
            "SET " + ", ".join(f"{_name(key)} = {_quoted(value)}" for key, value in statement.settings.items())
        )
        yield
    finally:
        for key in statement.settings:
            if _NAME.match(key):
                connection.query(f"SET {key} = DEFAULT")


def _name(key: str) -> str:
    if not _NAME.match(key):
        raise Refused(f"Code: 115. DB::Exception: {key!r} is no name of a setting. (UNKNOWN_SETTING)", code=115)
    return key


def _quoted(value: str) -> str:
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"


async def _statement(request: web.Request) -> Statement:
    options = dict(request.query)
    if request.content_type == "multipart/form-data":
        options.update(await _form_fields(request))
        body = b""
    else:
        body = _decompressed(await request.read(), request.headers.get("Content-Encoding", ""))
    if query := options.get("query"):
        body = query.encode() + (b"\n" + body if body else b"")
    if not body.strip():
        raise Refused("Code: 62. DB::Exception: Empty query. (SYNTAX_ERROR)", code=62)
    parameters = {key.removeprefix("param_"): value for key, value in options.items() if key.startswith("param_")}
    settings = {key: value for key, value in options.items() if key not in _TRANSPORT and not key.startswith("param_")}
    return Statement(
        body=body,
        database=options.get("database") or request.headers.get("X-ClickHouse-Database") or "default",
        default_format=options.get("default_format") or request.headers.get("X-ClickHouse-Format") or "TabSeparated",
        parameters=parameters,
        settings=settings,
    )


async def _form_fields(request: web.Request) -> dict[str, str]:
    fields = {}
    for key, value in (await request.post()).items():
        if isinstance(value, web.FileField):
            raise Refused(
                f"Code: 48. DB::Exception: External data ({key}) is not served here. (NOT_IMPLEMENTED)", code=48
            )
        fields[key] = value if isinstance(value, str) else bytes(value).decode()
    return fields


def _decompressed(body: bytes, encoding: str) -> bytes:
    if not encoding or encoding == "identity":
        return body
    if encoding not in _DECOMPRESSORS:
        raise Refused(
            f"Code: 48. DB::Exception: Content-Encoding {encoding!r} is not served here. (NOT_IMPLEMENTED)", code=48
        )
    return bytes(_DECOMPRESSORS[encoding](body))


class Front:
    """Turns requests into statements and results into responses."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._threads = ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="statement")

    def application(self) -> web.Application:
        application = web.Application(client_max_size=1024**3)
        application.router.add_get("/ping", self.ping)
        application.router.add_route("*", "/", self.answer)
        return application

    async def ping(self, request: web.Request) -> web.Response:
        return web.Response(text="Ok.\n")

    async def answer(self, request: web.Request) -> web.Response:
        started = time.monotonic_ns()
        headers = {
            "X-ClickHouse-Query-Id": request.query.get("query_id") or str(uuid.uuid4()),
            "X-ClickHouse-Server-Display-Name": "tidegate-stack",
            "X-ClickHouse-Timezone": self._engine.time_zone,
        }
        try:
            statement = await _statement(request)
            result = await asyncio.get_running_loop().run_in_executor(self._threads, self._engine.run, statement)
        except Refused as refusal:
            headers["X-ClickHouse-Exception-Code"] = str(refusal.code)
            return web.Response(status=_STATUS.get(refusal.code, 500), text=f"{refusal}\n", headers=headers)
        summary = {**result.summary, "elapsed_ns": str(time.monotonic_ns() - started)}
        headers["X-ClickHouse-Format"] = result.format
        headers["X-ClickHouse-Summary"] = json.dumps(summary)
        return web.Response(body=result.body, headers=headers, content_type="application/octet-stream")

    def close(self) -> None:
        self._threads.shutdown()
        self._engine.close()


async def serve(path: Path, port: int, stop: asyncio.Event) -> None:
    """Serves the folder on 127.0.0.1 until told to stop; what was accepted by then is finished."""
    front = Front(await asyncio.to_thread(Engine, path))
    runner = web.AppRunner(front.application(), auto_decompress=False, handle_signals=False)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", port, shutdown_timeout=5).start()
    try:
        await stop.wait()
    finally:
        await runner.cleanup()
        await asyncio.to_thread(front.close)


async def _serve_until_signal(path: Path, port: int) -> None:
    import signal

    stop = asyncio.Event()
    for each in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(each, stop.set)
    await serve(path, port, stop)


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description="ClickHouse's HTTP interface over the engine in its library.")
    parser.add_argument("--path", type=Path, required=True)
    parser.add_argument("--port", type=int, required=True)
    chosen = parser.parse_args(arguments)
    asyncio.run(_serve_until_signal(chosen.path, chosen.port))


if __name__ == "__main__":
    main(sys.argv[1:])
