"""Prints the bill of materials of the image, CycloneDX 1.5: `python -m scripts.sbom > sbom.json`.

From the lock that the image is built of: it can be made without the image, and says the same of a commit always.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any, NamedTuple

from packaging.markers import Marker

from tidegate.version import __version__

ROOT = Path(__file__).resolve().parents[1]
LOCK = ROOT / "requirements" / "run.txt"

_PACKAGE = re.compile(r"^(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[^\s;\\]+)(?: ; (?P<marker>[^\\]+?))? ?\\?$")
_HASH = re.compile(r"--hash=sha256:(?P<digest>[0-9a-f]{64})")
# What the image runs on; the lock is for all.
_IMAGE = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "implementation_name": "cpython"}
_PYTHON = {"python_version": "3.11", "python_full_version": "3.11.0", "platform_python_implementation": "CPython"}
_LICENCE = "License :: OSI Approved :: "


class Package(NamedTuple):
    """One line of the lock: `hashes` are of all its files, one of which the image has."""

    name: str
    version: str
    hashes: Sequence[str]


def locked(text: str) -> Iterator[Package]:
    """The packages of a lock that an image gets."""
    blocks = re.split(r"\n(?=[A-Za-z0-9])", text)
    for block in blocks:
        found = _PACKAGE.match(block.partition("\n")[0].rstrip())
        if found is None:
            continue
        if found["marker"] and not Marker(found["marker"]).evaluate({**_IMAGE, **_PYTHON, "extra": ""}):
            continue
        yield Package(found["name"], found["version"], _HASH.findall(block))


def licence(name: str) -> str:
    """What a package says of itself, in its own words; empty if it is not installed here or says nothing."""
    try:
        told = metadata(name)
    except PackageNotFoundError:
        return ""
    expressions = told.get_all("License-Expression") or []
    # Some put the whole text there.
    written = [each for each in told.get_all("License") or [] if "\n" not in each and 0 < len(each) < 60]
    classified = [each.removeprefix(_LICENCE) for each in told.get_all("Classifier") or [] if each.startswith(_LICENCE)]
    return ", ".join(expressions or written or classified)


def bill(packages: Sequence[Package]) -> Mapping[str, Any]:
    """The document, with the components in the order of their names."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "name": "tidegate",
                "version": __version__,
                "purl": f"pkg:pypi/tidegate@{__version__}",
                "licenses": [{"license": {"name": "Apache-2.0"}}],
            }
        },
        "components": [_component(each) for each in sorted(packages)],
    }


def _component(package: Package) -> Mapping[str, Any]:
    said = licence(package.name)
    return {
        "type": "library",
        "name": package.name,
        "version": package.version,
        "purl": f"pkg:pypi/{package.name}@{package.version}",
        "bom-ref": f"pkg:pypi/{package.name}@{package.version}",
        **({"licenses": [{"license": {"name": said}}]} if said else {}),
        "properties": [{"name": "tidegate:lock:sha256", "value": digest} for digest in package.hashes],
    }


if __name__ == "__main__":
    json.dump(bill(list(locked(LOCK.read_text(encoding="utf-8")))), sys.stdout, indent=2)
    print()
