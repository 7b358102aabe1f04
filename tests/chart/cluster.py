"""A real API server of Kubernetes beside the checkout, with a kubelet that only says it runs pods."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from tests.chart.rendering import ROOT, helm, program
from tidegate.stack.jars import cache_folder

_KUBE = ROOT.parent / "shared" / "kube"
_CRDS = Path(__file__).with_name("crds")
_BEAT_SECONDS = 8
PATIENCE = "180s"
"""What Helm waits for takes seconds. Two cores that are busy with ten other things have made a minute of them."""


@dataclass(frozen=True)
class Cluster:
    """Types kubectl and Helm at one API server."""

    kubeconfig: str

    def kubectl(self, *arguments: str, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "KUBECONFIG": self.kubeconfig, "HOME": str(ROOT / ".state" / "helm")}
        command = [program("kubectl"), "--request-timeout", "60s", *arguments]
        return subprocess.run(
            command, env=environment, input=stdin, capture_output=True, text=True, check=False, timeout=200
        )

    def must(self, *arguments: str, stdin: str | None = None) -> str:
        done = self.kubectl(*arguments, stdin=stdin)
        assert done.returncode == 0, f"kubectl {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def listed(self, kind: str, namespace: str) -> Sequence[Any]:
        return list(json.loads(self.must("get", kind, "-n", namespace, "-o", "json"))["items"])

    def namespace(self, name: str) -> str:
        """A namespace that enforces the *restricted* standard."""
        self.must("create", "namespace", name)
        self.must("label", "namespace", name, "pod-security.kubernetes.io/enforce=restricted")
        # Controllers bring them a moment later, and no pod is taken before.
        own = ("serviceaccount/default", "configmap/kube-root-ca.crt")
        self.must("wait", "--for=create", "-n", name, *own, "--timeout", PATIENCE)
        return name

    def helm(self, *arguments: str) -> str:
        done = helm(*arguments, kubeconfig=self.kubeconfig)
        assert done.returncode == 0, f"helm {' '.join(arguments)}: {done.stderr}"
        return done.stdout

    def refused(self, *arguments: str) -> str:
        """What Helm says about a command that must fail."""
        done = helm(*arguments, kubeconfig=self.kubeconfig)
        assert done.returncode != 0, f"helm {' '.join(arguments)}: {done.stdout}"
        return done.stderr

    def install(self, namespace: str, *arguments: str) -> None:
        self.helm("install", "shop", "helm", "-n", namespace, "--wait", "--timeout", PATIENCE, *arguments)

    def upgrade(self, namespace: str, *arguments: str) -> None:
        self.helm("upgrade", "shop", "helm", "-n", namespace, "--wait", "--timeout", PATIENCE, *arguments)

    def happened(self, namespace: str) -> Sequence[str]:
        """What controllers did with Jobs and Deployments, in the order of the server's own clock."""
        events = sorted(self.listed("events", namespace), key=lambda each: int(each["metadata"]["resourceVersion"]))
        kinds = ("Job", "Deployment")
        return [f"{e['involvedObject']['name']}: {e['reason']}" for e in events if e["involvedObject"]["kind"] in kinds]


@contextmanager
def running_cluster(folder: Path) -> Iterator[Cluster]:
    """A cluster in `folder` until the end of the block; skips the test where its programs are not."""
    if not (_KUBE / "up.sh").exists():
        pytest.skip("there is no ../shared/kube: no API server of Kubernetes")
    (folder / "bin").mkdir()
    (folder / "bin" / "kubelocal").symlink_to(_unpacked())
    environment = {**os.environ, "KUBE_DIR": str(folder), **_ports()}
    try:
        up = subprocess.run(
            [str(_KUBE / "up.sh"), str(folder)],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=100,
        )
        assert up.returncode == 0, up.stderr
        cluster = Cluster(str(folder / "run" / "kubeconfig"))
        with _beating(cluster):
            _furnish(cluster)
            yield cluster
    finally:
        subprocess.run([str(_KUBE / "stop.sh")], env=environment, capture_output=True, check=False, timeout=30)


@contextmanager
def _beating(cluster: Cluster) -> Iterator[None]:
    """The node's lease is renewed until the end of the block.

    Its kubelet does not: 50 s later the node would count as gone, and with it all pods as not ready, also those of a
    roll that somebody waits for.
    """
    lease = {"kind": "Lease", "apiVersion": "coordination.k8s.io/v1", "metadata": {"name": "fake-node"}}
    cluster.must("create", "-n", "kube-node-lease", "-f", "-", stdin=json.dumps(lease))
    is_over = threading.Event()

    def beat() -> None:
        while True:
            renewed = json.dumps({"spec": {"renewTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}})
            cluster.kubectl("patch", "lease", "fake-node", "-n", "kube-node-lease", "--type=merge", "-p", renewed)
            if is_over.wait(_BEAT_SECONDS):
                return

    thread = threading.Thread(target=beat, name="node-lease", daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join(timeout=90)


def _unpacked() -> Path:
    """The programs, unpacked once for all runs of this user: that takes as long as starting them."""
    packed = _KUBE / "kubelocal.xz"
    digest = sha256(packed.read_bytes()).hexdigest()[:16]
    target = cache_folder() / f"kubelocal-{digest}"
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        part = target.with_name(f"{target.name}.{os.getpid()}")
        with part.open("wb") as file:
            subprocess.run(["xz", "-dc", str(packed)], stdout=file, check=True, timeout=90)
        part.chmod(0o755)
        part.replace(target)
    return target


def _ports() -> dict[str, str]:
    """Free ones, so that several runs share a machine."""
    names = ("KUBE_API_PORT", "KUBE_ETCD_PORT", "KUBE_ETCD_PEER_PORT")
    with ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in names]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return {name: str(each.getsockname()[1]) for name, each in zip(names, sockets, strict=True)}


def _furnish(cluster: Cluster) -> None:
    """Kinds of the operators, the priority that an example names, and a disk for the node."""
    cluster.must("apply", "--server-side", "-f", ",".join(map(str, sorted(_CRDS.glob("*.yaml")))))
    cluster.must("create", "priorityclass", "important", "--value=1000")
    disk = {"ephemeral-storage": "1Ti"}
    status = json.dumps({"status": {"capacity": disk, "allocatable": disk}})
    cluster.must("patch", "node", "fake-node", "--subresource=status", "-p", status)
    kinds = "crd/scaledobjects.keda.sh", "crd/servicemonitors.monitoring.coreos.com"
    cluster.must("wait", "--for=condition=Established", *kinds, "crd/prometheusrules.monitoring.coreos.com")
