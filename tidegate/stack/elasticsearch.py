"""Elasticsearch, one node, from its published jars."""

import json
import shutil
from pathlib import Path
from urllib.request import Request, urlopen

from tidegate.stack.jars import JarSet, fetch
from tidegate.stack.names import ServerName
from tidegate.stack.process import Launch
from tidegate.stack.progress import Reporter
from tidegate.stack.servers import Container, missing_java, missing_maven

VERSION = "8.19.21"
JARS = JarSet(
    "elasticsearch",
    (f"org.elasticsearch:elasticsearch:{VERSION}", f"org.elasticsearch.plugin:transport-netty4:{VERSION}"),
)
_NODE = Path(__file__).with_name("EsNode.java")
_PLUGIN = "transport-netty4"
_DESCRIPTOR = f"""name={_PLUGIN}
description=HTTP and transport over Netty
classname=org.elasticsearch.transport.netty4.Netty4Plugin
version={VERSION}
elasticsearch.version={VERSION}
java.version=17
has.native.controller=false
extended.plugins=
"""


class Elasticsearch:
    """`Server`: one node of Elasticsearch, without security."""

    name = ServerName.ELASTICSEARCH
    port_count = 2
    grace_seconds = 10.0

    def missing(self) -> list[str]:
        return [*missing_java(), *([] if JARS.is_fetched else missing_maven())]

    def prepare(self, home: Path, report: Reporter) -> None:
        """The layout that Elasticsearch expects, of links into the jar cache."""
        jars = fetch(JARS, report)
        for folder in ("config", "data", "logs"):
            (home / folder).mkdir(exist_ok=True)
        # Links are laid anew: the cache may have been cleared or moved since.
        for folder in ("lib", "modules"):
            shutil.rmtree(home / folder, ignore_errors=True)
        (home / "lib").mkdir()
        module = home / "modules" / _PLUGIN
        module.mkdir(parents=True)
        (module / "plugin-descriptor.properties").write_text(_DESCRIPTOR)
        for jar in jars.glob("*.jar"):
            belongs_to_module = jar.name.startswith(("netty-", _PLUGIN))
            ((module if belongs_to_module else home / "lib") / jar.name).symlink_to(jar)

    def launch(self, home: Path, ports: list[int]) -> Launch:
        command = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-cp", f"{home / 'lib'}/*"]
        command += [str(_NODE), str(home), str(ports[0]), str(ports[1])]
        return Launch(command=command, address=f"http://127.0.0.1:{ports[0]}", directory=str(home))

    def container(self, port: int) -> Container:
        environment = {
            "discovery.type": "single-node",
            "xpack.security.enabled": "false",
            "ES_JAVA_OPTS": "-Xms512m -Xmx512m",
            "cluster.routing.allocation.disk.threshold_enabled": "false",
        }
        image = f"docker.elastic.co/elasticsearch/elasticsearch:{VERSION}"
        return Container(image, 9200, "http://127.0.0.1:{port}", environment)

    def check(self, address: str) -> None:
        request = Request(f"{address}/_cluster/health?timeout=1s", headers={"Accept": "application/json"})  # noqa: S310  # http or https
        with urlopen(request, timeout=3) as answer:  # noqa: S310  # as above
            health = json.load(answer)["status"]
        if health == "red":
            raise ConnectionError("Elasticsearch answers but its cluster is red")
