"""The image as far as it can be judged without building it: its recipe, what goes into it, its bill of materials."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Sequence

from scripts import sbom
from tests.chart.rendering import ROOT, program

_DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
_PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def _stages() -> Sequence[str]:
    return re.split(r"^FROM .*$", _DOCKERFILE, flags=re.MULTILINE)[1:]


def test_linter_has_nothing_to_say() -> None:
    """It knows the mistakes that everybody makes once."""
    done = subprocess.run(
        [program("hadolint"), str(ROOT / "Dockerfile")], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_what_runs_is_not_root_and_builds_nothing() -> None:
    """`runAsNonRoot` takes numbers alone; a compiler in production is a gift to whoever breaks in."""
    _, run = _stages()
    assert re.findall(r"^USER (.*)$", run, re.MULTILINE) == ["10001:10001"]
    assert "pip" not in run
    assert run.count("COPY --from=build") == run.count("COPY") == 1
    assert 'ENTRYPOINT ["tidegate"]' in run


def test_every_package_comes_by_its_hash() -> None:
    """A registry that was tampered with must not reach an image."""
    lines = re.split(r"\n|&&", _stages()[0].replace("\\\n", " "))
    installs = [line for line in lines if re.search(r"pip (install|wheel) ", line)]
    assert len(installs) == 4
    assert all("--require-hashes" in each or "--no-index" in each for each in installs)
    locks = [(ROOT / "requirements" / name).read_text(encoding="utf-8") for name in ("run.txt", "build.txt")]
    (backend,) = _PROJECT["build-system"]["requires"]
    assert f"\n{backend} \\\n" in f"\n{locks[1]}"


def test_every_package_of_the_wheel_is_copied_and_nothing_else_is_sent() -> None:
    """A package that is forgotten here would be missing in production only."""
    packages = set(_PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"])
    copied = set(re.findall(r"^COPY (\w+)/ \1/$", _DOCKERFILE, re.MULTILINE))
    sent = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    assert copied == packages
    assert "*" in sent
    assert {line.strip("!/") for line in sent if line.endswith("/")} == packages


def test_bill_of_materials_names_what_the_image_gets() -> None:
    """Whoever asks which releases hold a vulnerable package must get an answer that is right."""
    text = sbom.LOCK.read_text(encoding="utf-8")
    packages = list(sbom.locked(text))
    bill = sbom.bill(packages)

    named = {each["name"]: each["version"] for each in bill["components"]}
    required = {re.split(r"[\[<>=;]", each)[0] for each in _PROJECT["project"]["dependencies"]}
    assert required <= named.keys()
    assert len(named) == len(packages) > 40
    assert all(re.search(rf"^{each.name}=={re.escape(each.version)} ", text, re.MULTILINE) for each in packages)
    assert all(each.hashes for each in packages)
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.5")


def test_bill_of_materials_leaves_out_other_platforms() -> None:
    """The lock is for all systems; a package for Windows is in no image."""
    lock = (
        "one==1.0 \\\n    --hash=sha256:" + "a" * 64 + "\n    # via x\n"
        "two==2.0 ; sys_platform == 'win32' \\\n    --hash=sha256:" + "b" * 64 + "\n"
        "three==3.0 ; python_full_version < '3.13' \\\n    --hash=sha256:" + "c" * 64 + "\n"
    )
    assert [each.name for each in sbom.locked(lock)] == ["one", "three"]
