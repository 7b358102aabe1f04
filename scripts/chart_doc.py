"""Writes what the chart repeats: the names of settings and reasons in its schema, its version, and its table of values.

`python -m scripts.chart_doc` after a change of helm/values.yaml, of a setting, or of the version; a test compares.
"""

import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from tidegate.commands.k8s_settings import settings
from tidegate.version import __version__
from tidegate_kernel.errors import Reason
from tidegate_kernel.settings import KafkaSettings, Settings

ROOT = Path(__file__).resolve().parents[1]
HELM, DOCKERFILE, INSTALLING = ROOT / "helm", ROOT / "Dockerfile", ROOT / "docs" / "kubernetes" / "README.md"
SCHEMA, VALUES, README, CHART = (
    HELM / name for name in ("values.schema.json", "values.yaml", "README.md", "Chart.yaml")
)

_BEGIN, _END = "<!-- values: written by scripts/chart_doc.py -->", "<!-- end of values -->"
_KEY = re.compile(r"(?P<indent> *)(?P<key>[A-Za-z]\w*):(?: (?P<value>.*))?$")
_WIDTH = 118
_MAY_BE_EMPTY = frozenset({"", "null", '""', "{}", "[]"})


class Value(NamedTuple):
    """One line of the table: a value's path, its default as it is written, and what it is for."""

    path: str
    default: str
    told: str


def values(text: str) -> Iterator[Value]:
    """Every key of values.yaml that has a comment of its own, `# -- …`, in the order of the file."""
    place: list[tuple[int, str]] = []
    told: list[str] = []
    for line in text.splitlines():
        said = line.strip()
        if said.startswith("# -- "):
            told = [said.removeprefix("# -- ")]
        elif said.startswith("# ") and told:
            told.append(said.removeprefix("# "))
        elif found := _KEY.match(line):
            place = [each for each in place if each[0] < len(found["indent"])]
            place.append((len(found["indent"]), found["key"]))
            if told:
                yield Value(".".join(key for _, key in place), (found["value"] or "").strip(), " ".join(told))
            told = []


def readme(former: str, text: str) -> str:
    """`former` with the table of the values in `text`."""
    lines = ["| value | default | meaning |", "|---|---|---|"]
    lines += [
        f"| `{each.path}` | {_cell(each.default)} | {each.told.replace('|', '&#124;')} |" for each in values(text)
    ]
    head, _, rest = former.partition(_BEGIN)
    return "\n".join([f"{head}{_BEGIN}", "", *lines, "", f"{_END}{rest.partition(_END)[2]}"])


def _cell(default: str) -> str:
    return f"`{default}`" if default else "see the file"


def schema(former: str, said: str) -> str:
    """`former` with the names that the code knows, and with what may not be left empty."""
    found: dict[str, Any] = json.loads(former)
    for each in values(said):
        path = each.path.split(".")
        may_be_empty = each.default in _MAY_BE_EMPTY or each.default.startswith("{")
        _require(found, path[:-1] if may_be_empty else path)
    definitions, free = found["definitions"], settings()
    shapes = dict(_shapes())
    definitions["settings"]["properties"] = {name: shapes[name] for name, is_secret in free.items() if not is_secret}
    definitions["secretEnv"]["properties"] = {name: {"$ref": "#/definitions/secretKey"} for name in free}
    definitions["replay"]["properties"]["failedFor"]["enum"] = [str(reason) for reason in Reason]
    return f"{_spelled(found, 0)}\n"


def _shapes() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """What each setting may say, as far as its type tells; the program itself knows the rest."""
    for prefix, declared in (("TIDEGATE_", Settings), ("TIDEGATE_KAFKA_", KafkaSettings)):
        for name, told in declared.model_json_schema()["properties"].items():
            yield f"{prefix}{name}".upper(), _shape(next(iter(told.get("anyOf", ())), told))


def _shape(told: Mapping[str, Any]) -> Mapping[str, Any]:
    """Numbers may be quoted: in a variable all is text. Bounds count for numbers alone, patterns for text."""
    if "enum" in told:
        return {"enum": told["enum"]}
    match told.get("type"), told.get("format"):
        case "integer", _:
            bounds = {key: told[key] for key in ("minimum", "exclusiveMinimum", "maximum") if key in told}
            return {"type": ["integer", "string"], **bounds, "pattern": "^[0-9]+$"}
        case "boolean", _:
            return {"enum": [True, False, "true", "false"]}
        case "string", "duration" if "ge" in told:
            return {"$ref": "#/definitions/seconds"}
        case _:
            return {"$ref": "#/definitions/setting"}


def _require(found: dict[str, Any], path: Sequence[str]) -> None:
    """`replicas:` with nothing behind it takes the default away, and a template would print nothing in its place."""
    for key in path:
        if key not in found.setdefault("required", []):
            found["required"].append(key)
        found = found["properties"][key]


def _spelled(value: Any, indent: int) -> str:
    """JSON with one line for whatever fits into one."""
    flat = json.dumps(value, ensure_ascii=False)
    if len(flat) + indent < _WIDTH or not isinstance(value, Mapping):
        return flat
    inner = " " * (indent + 2)
    items = ",\n".join(f"{inner}{json.dumps(key)}: {_spelled(each, indent + 2)}" for key, each in value.items())
    return f"{{\n{items}\n{' ' * indent}}}"


def chart(former: str) -> str:
    """`former` with this package's version."""
    text = re.sub(r"^version: .*$", f"version: {__version__}", former, flags=re.MULTILINE)
    return re.sub(r"^appVersion: .*$", f'appVersion: "{__version__}"', text, flags=re.MULTILINE)


def dockerfile(former: str) -> str:
    """`former` with this package's version."""
    return image_names(re.sub(r"^ARG VERSION=.*$", f"ARG VERSION={__version__}", former, flags=re.MULTILINE))


def image_names(former: str) -> str:
    """`former` with this package's version wherever Tidegate's own image is named."""
    return re.sub(r"\btidegate:\d+\.\d+\.\d+\S*", f"tidegate:{__version__}", former)


def written() -> Mapping[Path, str]:
    """What should stand in each file."""
    said = VALUES.read_text(encoding="utf-8")
    return {
        README: readme(README.read_text(encoding="utf-8"), said),
        SCHEMA: schema(SCHEMA.read_text(encoding="utf-8"), said),
        CHART: chart(CHART.read_text(encoding="utf-8")),
        DOCKERFILE: dockerfile(DOCKERFILE.read_text(encoding="utf-8")),
        INSTALLING: image_names(INSTALLING.read_text(encoding="utf-8")),
    }


if __name__ == "__main__":
    stale = {file: text for file, text in written().items() if file.read_text(encoding="utf-8") != text}
    if "--check" in sys.argv:
        sys.exit(f"not current: {', '.join(file.name for file in stale)}" if stale else 0)
    for changed, content in stale.items():
        changed.write_text(content, encoding="utf-8")
