"""Server jars, fetched by Maven into a cache that all stacks of a user share, and checked against known digests."""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tidegate.stack.progress import Reporter
from tidegate_kernel.errors import Misconfigured

_COPY = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0</modelVersion>
<groupId>tidegate.stack</groupId><artifactId>{name}</artifactId><version>1</version><packaging>pom</packaging>
<dependencies>{dependencies}</dependencies></project>
"""
_DEPENDENCY = "<dependency><groupId>{}</groupId><artifactId>{}</artifactId><version>{}</version></dependency>"


@dataclass(frozen=True)
class JarSet:
    """Some Maven artifacts with all that they need; `<name>.sha256` beside this module locks every jar."""

    name: str
    artifacts: tuple[str, ...]  # group:artifact:version

    @property
    def digests(self) -> dict[str, str]:
        """SHA-256 of each jar by its file name."""
        lines = (Path(__file__).parent / "digests" / f"{self.name}.sha256").read_text().splitlines()
        return {name: digest for digest, name in (line.split() for line in lines)}

    @property
    def folder(self) -> Path:
        """Where the jars lie once fetched; another lock means another folder, so a folder is never out of date."""
        lock = hashlib.sha256("".join(sorted(self.digests.values())).encode()).hexdigest()[:16]
        return cache_folder() / "jars" / f"{self.name}-{lock}"

    @property
    def is_fetched(self) -> bool:
        return self.folder.is_dir()


def cache_folder() -> Path:
    """Tidegate's folder for what can be fetched again: `$XDG_CACHE_HOME/tidegate`, by default `~/.cache/tidegate`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "tidegate"


def fetch(jars: JarSet, report: Reporter) -> Path:
    """The folder with exactly the locked jars. Concurrent callers share one download; a killed one leaves no half."""
    with _only_one(jars):
        if not jars.is_fetched:
            for leftover in jars.folder.parent.glob(f".{jars.name}-*"):
                shutil.rmtree(leftover, ignore_errors=True)
            with tempfile.TemporaryDirectory(dir=jars.folder.parent, prefix=f".{jars.name}-") as work:
                _download(jars, Path(work), report)
                _check(jars, Path(work) / "jars")
                (Path(work) / "jars").rename(jars.folder)
    return jars.folder


@contextmanager
def _only_one(jars: JarSet) -> Iterator[None]:
    jars.folder.parent.mkdir(parents=True, exist_ok=True)
    with (jars.folder.parent / f".{jars.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _download(jars: JarSet, work: Path, report: Reporter) -> None:
    (work / "jars").mkdir()
    dependencies = "".join(_DEPENDENCY.format(*artifact.split(":")) for artifact in jars.artifacts)
    (work / "pom.xml").write_text(_POM.format(name=jars.name, dependencies=dependencies))
    command = ["mvn", "--batch-mode", "--file", str(work / "pom.xml"), _COPY]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={work / 'jars'}"]
    report.say(jars.name, "fetching the server's jars with Maven")
    said, total, done = [], len(jars.digests), 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as maven:
        assert maven.stdout is not None
        for line in maven.stdout:
            said.append(line)
            # Maven's own plugins count as well while it fetches them the first time, hence the bound.
            if re.search(r"(Downloaded from .*|Copying \S+)\.jar", line) and done < total:
                done += 1
                report.count(jars.name, "jars", done, total)
    if maven.returncode != 0:
        errors = [line.strip() for line in said if line.startswith("[ERROR]")][:2]
        raise Misconfigured(f"{jars.name}: Maven could not fetch the server's jars: {' '.join(errors) or said[-1:]}")


def _check(jars: JarSet, folder: Path) -> None:
    found = {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.glob("*.jar")}
    wrong = sorted(name for name in found.keys() | jars.digests.keys() if found.get(name) != jars.digests.get(name))
    if wrong:
        shutil.rmtree(folder)
        raise Misconfigured(
            f"{jars.name}: jars that are not the locked ones: {', '.join(wrong[:5])}; "
            "is a mirror in Maven's settings serving something else?"
        )
