"""`tidegate jobs docs`: the document of each job, written from its declaration."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tidegate.commands.loading import load_app
from tidegate.commands.options import AppOption, JsonOption, examples, print_json, tell
from tidegate.jobs.docs.documents import Repository, differing, documents_of, write
from tidegate.jobs.text import Language
from tidegate_kernel.errors import Misconfigured

DOCS_EXAMPLES = examples(
    "tidegate jobs docs ledger",
    "tidegate jobs docs --lang ru --out docs/jobs/ru",
    "tidegate jobs docs --lang ru --out docs/jobs/ru --check   [dim]# in CI: exit 1 if a file is not current[/dim]",
)


def docs_command(
    job: Annotated[str | None, typer.Argument(metavar="[JOB]", help="Of one job.")] = None,
    lang: Annotated[Language, typer.Option(help="In which language.")] = Language.EN,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help="Write a file for each job there.")] = None,
    root: Annotated[Path, typer.Option(metavar="DIR", help="The repository: its tests, runbooks, documents.")] = Path(),
    is_check: Annotated[bool, typer.Option("--check", help="Change nothing; exit 1 if --out is not current.")] = False,
    app: AppOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the document of each job from its declaration, or say whether those that are there are current."""
    loaded = load_app(app)
    if job is not None:
        loaded.any_job(job)
    if out is None and is_check:
        raise Misconfigured("--check needs --out DIR: what is to be compared with the declarations?")
    if out is not None and job is not None:
        raise Misconfigured("--out writes the documents of all jobs; leave the job away")
    repository = Repository.at(root.resolve())
    folder = repository.root if out is None else out.resolve()
    texts = documents_of(loaded, lang, repository, folder, codes=None if job is None else [job])
    if out is None:
        _show(list(texts.values()), as_json=as_json)
        return
    changed = differing(texts, folder) if is_check else write(texts, folder)
    _report(out, list(changed), is_check=is_check, as_json=as_json)


def _show(texts: list[str], *, as_json: bool) -> None:
    if as_json:
        print_json(texts)
    else:
        typer.echo("\n".join(texts), nl=False)


def _report(folder: Path, changed: list[str], *, is_check: bool, as_json: bool) -> None:
    if as_json:
        print_json({"folder": str(folder), "changed": changed, "is_current": not changed})
    elif not changed:
        tell(f"{folder} is current")
    else:
        what = "is not current; 'tidegate jobs docs' without --check writes it" if is_check else "is written"
        tell(*(f"{folder / name} {what}" for name in changed))
    if is_check and changed:
        raise typer.Exit(1)
