"""Kubernetes' own schemas, strict: an unknown key is an error."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from tests.chart.rendering import TOOLS, Object, library

VERSIONS = ("1.30", "1.31", "1.32", "1.33", "1.34", "1.35", "1.36", "1.37")
_FOLDER = TOOLS / "python" / "kubernetes_validate" / "kubernetes-json-schema"
_CRDS = Path(__file__).with_name("crds")


def problems(found: Object, version: str) -> Sequence[str]:
    """What a cluster of this version would refuse about it, or about what it stands in."""
    validator = _custom(found["apiVersion"], found["kind"]) or _builtin(version, found["apiVersion"], found["kind"])
    name = f"{found['kind']} {found['metadata']['name']}"
    return [f"{name}: {error.json_path}: {error.message}" for error in validator.iter_errors(found)]


@cache
def _registry(version: str) -> Any:
    referencing = library("referencing")
    definitions = json.loads((_FOLDER / f"v{version}.0-local-strict" / "_definitions.json").read_text(encoding="utf-8"))
    return referencing.Resource.from_contents(definitions) @ referencing.Registry()


@cache
def _builtin(version: str, api_version: str, kind: str) -> Any:
    library("jsonschema")
    group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
    file = _FOLDER / f"v{version}.0-local-strict" / f"{kind.lower()}-{group}.json"
    schema = json.loads(file.read_text(encoding="utf-8"))
    return library("jsonschema").Draft202012Validator(schema, registry=_registry(version))


@cache
def _custom(api_version: str, kind: str) -> Any:
    """The validator of a kind that an operator brings; None for others."""
    yaml = library("yaml")
    for file in sorted(_CRDS.glob("*.yaml")):
        declared = yaml.load(file.read_text(encoding="utf-8"), yaml.CSafeLoader)["spec"]
        for version in declared["versions"]:
            if (f"{declared['group']}/{version['name']}", declared["names"]["kind"]) == (api_version, kind):
                schema = _strict(version["schema"]["openAPIV3Schema"], is_top=True)
                return library("jsonschema").Draft202012Validator(schema)
    return None


def _strict(schema: Any, *, is_top: bool = False) -> Any:
    """The schema as an API server takes it with `fieldValidation=Strict`: what is not declared is not allowed."""
    if isinstance(schema, list):
        return [_strict(each) for each in schema]
    if not isinstance(schema, Mapping):
        return schema
    made: dict[str, Any] = {
        key: {name: _strict(each) for name, each in found.items()} if key == "properties" else _strict(found)
        for key, found in schema.items()
    }
    if is_top:
        made["properties"]["metadata"] = {"type": "object"}
    if "properties" in made and not schema.get("x-kubernetes-preserve-unknown-fields"):
        made.setdefault("additionalProperties", False)
    return made


def without_foreign(found: Sequence[Object]) -> Iterator[Object]:
    """What the chart's own templates make; extraObjects are of operators that only a cluster knows."""
    return (each for each in found if each["kind"] not in ("ExternalSecret", "SecretProviderClass"))
