"""Documents of all jobs of an App as files, and whether those that are there are still what the declaration says."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tidegate.app import App
from tidegate.jobs.clockwork.declaration import ClockJob
from tidegate.jobs.declaration import Job
from tidegate.jobs.docs.coverage import Coverage, Rule, covering_tests
from tidegate.jobs.docs.references import GENERATED, documents, naming, repository_files
from tidegate.jobs.docs.sections import SECTIONS
from tidegate.jobs.docs.sheet import Evidence, Sheet
from tidegate.jobs.text import Language


@dataclass(frozen=True, slots=True)
class Repository:
    """What was found in a service's repository: its documents, and what its tests cover. `root`: its folder."""

    root: Path
    texts: Sequence[tuple[Path, str]]
    coverage: Coverage

    @classmethod
    def at(cls, root: Path) -> Repository:
        """Reads the folder; tests are read as texts, nothing of them is imported. Raises Misconfigured."""
        files = [file for file in repository_files(root, ".py") if file.name.startswith("test_")]
        return cls(root, documents(root), covering_tests(root, files))

    def evidence(self, job: Job | ClockJob, folder: Path) -> Evidence:
        """What the repository holds about the job, with links that work in a document in `folder`."""
        runbook = self.root / job.runbook.partition("#")[0]
        return Evidence(
            runbook=job.runbook
            if "://" in job.runbook
            else self._link(job.runbook, folder, is_there=runbook.is_file()),
            tests={rule: self.coverage[job.code, rule] for rule in Rule if (job.code, rule) in self.coverage},
            references=[
                (file.relative_to(self.root).as_posix(), _relative(file, folder))
                for file in naming(job.code, self.texts)
            ],
        )

    def _link(self, path: str, folder: Path, *, is_there: bool) -> str | None:
        return _relative(self.root / path, folder) if is_there else None


def document(sheet: Sheet) -> str:
    """The whole text of a job's document."""
    parts = [f"# {sheet.job.code}", f"{GENERATED}: {sheet.say('written')} -->"]
    for name, section in SECTIONS:
        parts += [f"## {sheet.say(f'heading.{name}')}", "\n".join(section(sheet))]
    return "\n\n".join(parts) + "\n"


def documents_of(
    app: App, language: Language, repository: Repository, folder: Path, *, codes: Sequence[str] | None = None
) -> Mapping[str, str]:
    """Returns the texts of all the service's own jobs' documents, or of some, by file name. Links work in `folder`."""
    every = (*app.jobs, *app.clock_jobs, *app.upkeep_jobs) if codes is not None else (*app.jobs, *app.clock_jobs)
    jobs = [job for job in every if codes is None or job.code in codes]
    sheets = [Sheet(app, job, language, repository.evidence(job, folder)) for job in jobs]
    return {f"{sheet.job.code}.md": document(sheet) for sheet in sheets}


def write(texts: Mapping[str, str], folder: Path) -> Sequence[str]:
    """The folder holds these documents and no other that was written so. Returns the names of files that changed."""
    changed = differing(texts, folder)
    folder.mkdir(parents=True, exist_ok=True)
    for name in changed:
        if name in texts:
            (folder / name).write_text(texts[name], encoding="utf-8")
        else:
            (folder / name).unlink()
    return changed


def differing(texts: Mapping[str, str], folder: Path) -> Sequence[str]:
    """Names of documents in `folder` that are missing, other than `texts`, or of jobs that there are no more."""
    there = {file.name: file.read_text(encoding="utf-8") for file in sorted(folder.glob("*.md"))}
    left = [name for name, text in there.items() if name not in texts and GENERATED in text]
    return [name for name, text in texts.items() if there.get(name) != text] + left


def _relative(file: Path, folder: Path) -> str:
    return Path(os.path.relpath(file, folder)).as_posix()
