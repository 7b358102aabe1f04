"""Kafka behind passwords and certificates: right ones serve every client, wrong ones end in one line."""

from __future__ import annotations

import asyncio
import base64
import json
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from pydantic import SecretStr

from tidegate.stack import kafka as stack_kafka
from tidegate.stack.jars import fetch
from tidegate.stack.process import free_ports
from tidegate.stack.progress import Lines
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import TopicPartition
from tidegate_kernel.kafka import connection_options, create_topics, join_group, open_reader, open_writer
from tidegate_kernel.settings import KafkaSettings
from tidegate_kernel.source import Outgoing

PASSWORD = "right-password"
WRONG = "wrong-password"
PASSWORD_MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")

# What connection_options makes of the settings.


@pytest.mark.parametrize("protocol", ["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"])
@pytest.mark.parametrize("mechanism", [*PASSWORD_MECHANISMS, "OAUTHBEARER"])
def test_options_hold_what_the_protocol_asks_for_and_nothing_else(protocol: str, mechanism: str) -> None:
    """Plain settings, one to one: no credentials where none are asked for, no login without its mechanism."""
    settings = KafkaSettings(
        security_protocol=protocol,
        sasl_mechanism=mechanism,
        sasl_username="alice",
        sasl_password=SecretStr(PASSWORD),
        sasl_token_file=Path("token"),
    )

    options = connection_options(settings)

    assert options["security_protocol"] == protocol
    assert ("ssl_context" in options) == protocol.endswith("SSL")
    login = {name: value for name, value in options.items() if name.startswith("sasl")}
    if not protocol.startswith("SASL"):
        assert login == {}
    elif mechanism == "OAUTHBEARER":
        assert set(login) == {"sasl_mechanism", "sasl_oauth_token_provider"}
    else:
        assert login == {
            "sasl_mechanism": mechanism,
            "sasl_plain_username": "alice",
            "sasl_plain_password": PASSWORD,
        }


def test_host_name_is_checked_unless_told_otherwise() -> None:
    """TLS without the host's name would take any certificate that the same authority has signed."""
    strict, lax = (
        connection_options(KafkaSettings(security_protocol="SSL", ssl_check_hostname=checks))["ssl_context"]
        for checks in (True, False)
    )

    assert (strict.check_hostname, lax.check_hostname) == (True, False)
    assert strict.verify_mode == lax.verify_mode, "the authority is always checked"


@pytest.mark.parametrize("field", ["ssl_ca_file", "ssl_cert_file"])
@pytest.mark.parametrize("content", [None, "no certificate"])
def test_file_that_cannot_be_used_is_told_in_one_line(field: str, content: str | None, tmp_path: Path) -> None:
    """A wrong mount is found at the start and names the settings, not a stack of the TLS library."""
    file = tmp_path / "file.pem"
    if content is not None:
        file.write_text(content)
    settings = KafkaSettings(security_protocol="SSL").model_copy(update={field: file})

    with pytest.raises(Misconfigured, match="TIDEGATE_KAFKA_SSL_") as caught:
        connection_options(settings)

    assert "\n" not in str(caught.value)


def test_oauthbearer_needs_its_token_file() -> None:
    """The setting that is missing is named before anything connects."""
    settings = KafkaSettings(security_protocol="SASL_SSL", sasl_mechanism="OAUTHBEARER")

    with pytest.raises(Misconfigured, match="TIDEGATE_KAFKA_SASL_TOKEN_FILE"):
        connection_options(settings)


# A real broker that asks for passwords, tokens and certificates.

Listener = Literal["BROKER", "LOGIN", "CERTIFICATE", "BOTH"]
PROTOCOLS = {"BROKER": "PLAINTEXT", "LOGIN": "SASL_PLAINTEXT", "CERTIFICATE": "SSL", "BOTH": "SASL_SSL"}


@dataclass(frozen=True)
class GuardedBroker:
    """One broker with a listener for each security protocol; alice's password is the right one everywhere."""

    folder: Path
    ports: dict[str, int]

    def settings(self, listener: Listener, **changed: Any) -> KafkaSettings:
        """As a client of `listener` needs them, but for what is `changed`."""
        told: dict[str, Any] = {
            "bootstrap": f"127.0.0.1:{self.ports[listener]}",
            "security_protocol": PROTOCOLS[listener],
            "sasl_username": "alice",
            "sasl_password": SecretStr(PASSWORD),
            "ssl_ca_file": self.folder / "ca.pem",
            "ssl_cert_file": self.folder / "client.pem",
            "ssl_key_file": self.folder / "client.key",
            "sasl_token_file": self.token(seconds=600),
        }
        return KafkaSettings(**{**told, **changed})

    def token(self, *, seconds: int) -> Path:
        """A token file that is good for `seconds` from now; the broker's test validator takes it unsigned."""
        now = time.time()
        parts = [{"alg": "none"}, {"sub": "alice", "iat": now - 1000, "exp": now + seconds}]
        encoded = [base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in parts]
        file = self.folder / f"token{seconds}"
        file.write_text(".".join([*encoded, ""]) + "\n")
        return file


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GuardedBroker]:
    folder = tmp_path_factory.mktemp("guarded")
    fetch(stack_kafka.JARS, Lines())
    _make_certificates(folder)
    names = [*PROTOCOLS, "CONTROLLER"]
    ports = dict(zip(names, free_ports(len(names)), strict=True))
    properties = folder / "server.properties"
    properties.write_text("".join(f"{k}={v}\n" for k, v in _properties(folder, ports).items()))
    java = ["java", "-Xmx256m", *stack_kafka._JVM, "-cp", f"{stack_kafka.JARS.folder}/*"]
    users = [f"--add-scram={m}=[name=alice,password={PASSWORD}]" for m in PASSWORD_MECHANISMS[1:]]
    _run(*java, "kafka.tools.StorageTool", "format", "-t", "guarded-guarded-guard1", "-c", properties, *users)
    with (
        (folder / "log").open("w") as log,
        subprocess.Popen([*java, "kafka.Kafka", properties], stdout=log, stderr=log) as server,
    ):
        try:
            _wait_for(server, ports["BROKER"], folder / "log")
            yield GuardedBroker(folder, ports)
        finally:
            server.kill()


def _properties(folder: Path, ports: dict[str, int]) -> dict[str, str]:
    listeners = {name: f"{name}://127.0.0.1:{port}" for name, port in ports.items()}
    module = "org.apache.kafka.common.security"
    logins = {
        "plain": f'{module}.plain.PlainLoginModule required user_alice="{PASSWORD}";',
        "scram-sha-256": f"{module}.scram.ScramLoginModule required;",
        "scram-sha-512": f"{module}.scram.ScramLoginModule required;",
        "oauthbearer": f'{module}.oauthbearer.OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="broker";',
    }
    asking = {
        f"listener.name.{listener}.{mechanism}.sasl.jaas.config": login
        for listener in ("login", "both")
        for mechanism, login in logins.items()
    }
    return {
        **stack_kafka._BROKER,
        **asking,
        "listeners": ",".join(listeners.values()),
        "advertised.listeners": ",".join(at for name, at in listeners.items() if name != "CONTROLLER"),
        "listener.security.protocol.map": ",".join(
            f"{n}:{p}" for n, p in {**PROTOCOLS, "CONTROLLER": "PLAINTEXT"}.items()
        ),
        "controller.quorum.voters": f"1@127.0.0.1:{ports['CONTROLLER']}",
        "log.dirs": str(folder / "data"),
        "sasl.enabled.mechanisms": ",".join(logins).upper(),
        "ssl.keystore.type": "PEM",
        "ssl.keystore.location": str(folder / "broker.both"),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(folder / "ca.pem"),
        "listener.name.certificate.ssl.client.auth": "required",
    }


def _make_certificates(folder: Path) -> None:
    """An authority, and a broker and a client that it has signed."""
    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
    ca = ("-CA", folder / "ca.pem", "-CAkey", folder / "ca.key")
    _run(
        "openssl",
        "req",
        "-x509",
        *curve,
        "-subj",
        "/CN=authority",
        "-keyout",
        folder / "ca.key",
        "-out",
        folder / "ca.pem",
    )
    names = "subjectAltName=DNS:localhost,IP:127.0.0.1"
    for name in ("broker", "client"):
        key, request, signed = (folder / f"{name}.{kind}" for kind in ("key", "csr", "pem"))
        _run("openssl", "req", *curve, "-subj", f"/CN={name}", "-addext", names, "-keyout", key, "-out", request)
        _run("openssl", "x509", "-req", "-in", request, *ca, "-copy_extensions", "copyall", "-out", signed)
        (folder / f"{name}.both").write_text(key.read_text() + signed.read_text())


def _run(*command: str | Path) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def _wait_for(server: subprocess.Popen[bytes], port: int, log: Path) -> None:
    deadline = time.monotonic() + 45
    while time.monotonic() < deadline:
        assert server.poll() is None, log.read_text()[-1000:]
        try:
            if stack_kafka.brokers_in_metadata("127.0.0.1", port):
                return
        except OSError:
            time.sleep(0.1)
    raise AssertionError(f"the broker did not come: {log.read_text()[-1000:]}")


RIGHT: list[tuple[Listener, str]] = [
    *(("LOGIN", mechanism) for mechanism in (*PASSWORD_MECHANISMS, "OAUTHBEARER")),
    ("CERTIFICATE", "PLAIN"),
    ("BOTH", "PLAIN"),
    ("BOTH", "SCRAM-SHA-512"),
]


@pytest.mark.parametrize("listener, mechanism", RIGHT)
async def test_right_credentials_serve_every_client(
    broker: GuardedBroker, unique_name: Callable[[str], str], listener: Listener, mechanism: str
) -> None:
    """Admin, producer, consumer group and reader log in alike, so a job runs on a guarded cluster by settings alone."""
    settings, topic = broker.settings(listener, sasl_mechanism=mechanism), unique_name("guarded")
    partition = TopicPartition(topic, 0)

    await create_topics(settings, {topic: 1}, replication=1)
    async with open_writer(settings) as writer:
        assert await writer.write([Outgoing(topic, b"whole")]) == [None]
    assigned = asyncio.Event()

    async def revoked(_: object) -> None:
        return None

    async with join_group(
        settings, group=topic, topics=[topic], on_assigned=lambda _: assigned.set(), on_revoked=revoked
    ) as member:
        await asyncio.wait_for(assigned.wait(), timeout=20)
        member.seek(partition, 0)
        fetched = await member.fetch([partition], max_records=1, timeout=10)
        await member.commit({partition: 1})
        assert (await member.topic_id(topic)).int != 0

    assert [record.value for record in fetched[partition]] == [b"whole"]


WRONGS: list[tuple[Listener, dict[str, Any], str]] = [
    *(
        ("LOGIN", {"sasl_mechanism": mechanism, "sasl_password": SecretStr(WRONG)}, "Authentication failed")
        for mechanism in PASSWORD_MECHANISMS
    ),
    ("LOGIN", {"sasl_username": "nobody"}, "Authentication failed"),
    ("BOTH", {"sasl_password": SecretStr(WRONG)}, "Authentication failed"),
    ("LOGIN", {"security_protocol": "PLAINTEXT"}, "over PLAINTEXT"),
    ("BROKER", {"security_protocol": "SASL_PLAINTEXT"}, "does not ask for a login"),
    ("CERTIFICATE", {"ssl_ca_file": None}, "certificate verify failed"),
    ("CERTIFICATE", {"ssl_cert_file": None, "ssl_key_file": None}, "certificate"),
    ("CERTIFICATE", {"security_protocol": "PLAINTEXT"}, "over PLAINTEXT"),
    ("BROKER", {"security_protocol": "SSL"}, "over SSL"),
]


@pytest.mark.parametrize("listener, changed, why", WRONGS)
async def test_wrong_credentials_end_in_one_line(
    broker: GuardedBroker, listener: Listener, changed: dict[str, Any], why: str
) -> None:
    """A worker that may not in says so at its start: what was refused, where, which settings; never the password."""
    await _assert_refused(broker.settings(listener, **changed), why)


@pytest.mark.parametrize("token", ["expired", "nonsense", "missing"])
async def test_token_that_is_not_taken_ends_in_one_line(broker: GuardedBroker, token: str, tmp_path: Path) -> None:
    """The client takes the broker's no to a token for a yes and then asks for ever: we must notice for it."""
    file = broker.token(seconds=-500) if token == "expired" else tmp_path / "token"
    if token == "nonsense":
        file.write_text(WRONG)
    settings = broker.settings("LOGIN", sasl_mechanism="OAUTHBEARER", sasl_token_file=file)

    await _assert_refused(settings, "No such file" if token == "missing" else "is the token valid?")


async def _assert_refused(settings: KafkaSettings, why: str) -> None:
    began = time.monotonic()
    for opened in (open_writer(settings), open_reader(settings)):
        with pytest.raises(Misconfigured) as caught:
            async with opened:
                raise AssertionError("it was let in")
        message = str(caught.value)
        assert why in message
        assert settings.bootstrap in message
        assert "TIDEGATE_KAFKA_" in message
        assert "\n" not in message
        assert WRONG not in message
        assert PASSWORD not in message
    assert time.monotonic() - began < 25, "nobody should wait for a no until a request times out"
