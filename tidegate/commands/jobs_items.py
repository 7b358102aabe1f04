"""`tidegate jobs items`, `replay` and `discard`: items of runs that failed, which are dead letters of their jobs."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer
from rich.markup import escape

from dlq.runs import RunKind
from tidegate.commands.decisions import DigestOption, ForceOption, LetterOption, WhyOption, YesOption
from tidegate.commands.dlq_filters import letter_id
from tidegate.commands.dlq_words import How
from tidegate.commands.item_deeds import ItemAsking, decide
from tidegate.commands.jobs_asking import (
    JobArgument,
    LimitOption,
    MaybeJob,
    code_of,
    connected,
    scope_text,
)
from tidegate.commands.loading import load_app
from tidegate.commands.options import (
    AppOption,
    JsonOption,
    examples,
    print_json,
    print_table,
    settings_of,
    wait_for,
)
from tidegate.jobs.clockwork.quarantine import ItemChoice, LostItem, lost_items
from tidegate_kernel.errors import Misconfigured
from tidegate_kernel.event import Scope
from tidegate_kernel.settings import Settings

ITEMS_EXAMPLES = examples("tidegate jobs items", "tidegate jobs items reconcile --json")
REPLAY_EXAMPLES = examples(
    "tidegate jobs replay reconcile --tenant acme --all",
    "tidegate jobs replay reconcile --tenant acme --item 'order-1041' --reason 'the account is open again' --yes",
    "tidegate jobs replay reconcile --tenant acme --letter 4be2a6d0-5f0a-8e63-9f0e-6f7f3c1f9b1d "
    "--reason 'mended' --force --yes",
)
DISCARD_EXAMPLES = examples(
    "tidegate jobs discard reconcile --tenant acme --item 'order-1041' --reason 'was a test order' --yes",
)

TenantOption = Annotated[str, typer.Option(help="Whose items.")]
BrandOption = Annotated[str, typer.Option(help="Of which brand.")]
ItemOption = Annotated[
    list[str] | None, typer.Option(metavar="ITEM", help="As 'jobs items' shows it; may be repeated.")
]
AllOption = Annotated[bool, typer.Option("--all", help="All dead letters of the tenant and brand.")]

_COLUMNS = ["job", "tenant", "item", "is", "since", "run", "error"]


def items_command(
    job: MaybeJob = None, limit: LimitOption = 20, app: AppOption = None, as_json: JsonOption = False
) -> None:
    """Show items that failed and were not done since.

    The next run of their occasion tries `failed` ones again by itself; the others wait for a replay or a discard.
    """
    loaded = load_app(app)
    items = wait_for(_items(settings_of(), loaded.service, code_of(loaded, job), limit))
    if as_json:
        print_json([{**asdict(item), "replay_instruction": item.instruction} for item in items])
    else:
        print_table(_COLUMNS, [_row(item) for item in items], right=["run"])


def _deciding(kind: RunKind) -> Callable[..., None]:
    """What is typed of a replay and of a discard is the same."""

    def command(
        job: JobArgument,
        tenant: TenantOption = "",
        brand: BrandOption = "",
        item: ItemOption = None,
        letter: LetterOption = None,
        all_items: AllOption = False,
        reason: WhyOption = "",
        yes: YesOption = False,
        force: ForceOption = False,
        digest: DigestOption = None,
        app: AppOption = None,
        as_json: JsonOption = False,
    ) -> None:
        if all_items == bool(item or letter):
            raise Misconfigured("say which: --item ITEM or --letter LETTER, once or more, or --all")
        loaded = load_app(app)
        declared, ids = loaded.clock_job(job), [letter_id(text) for text in letter or ()]
        scope = Scope(tenant, brand)
        choice = ItemChoice(job=declared, scope=scope, keys=item or (), letters=ids, is_forced=force)
        how = How(reason=reason, is_sure=yes, is_forced=force, digest=digest, as_json=as_json)
        typed = shlex.join(["tidegate", "jobs", kind, declared.code, *_spelled(choice)])
        decide(ItemAsking(app=loaded, job=declared, kind=kind, wanted=choice, typed=typed, how=how))

    command.__doc__ = _HELP[kind]
    return command


_HELP = {
    RunKind.REPLAY: "Have failed items done again, as their job's query answers with them now, and nothing else.",
    RunKind.DISCARD: "Decide that nobody will do failed items: no run of their occasion tries them again. For admins.",
}
replay_command, discard_command = _deciding(RunKind.REPLAY), _deciding(RunKind.DISCARD)


def _spelled(choice: ItemChoice) -> Iterator[str]:
    for option, text in (("--tenant", choice.scope.tenant), ("--brand", choice.scope.brand)):
        if text:
            yield from (option, text)
    for key in choice.keys:
        yield from ("--item", key)
    for letter in choice.letters:
        yield from ("--letter", str(letter))
    if choice.is_all:
        yield "--all"


async def _items(settings: Settings, service: str, code: str | None, limit: int) -> Sequence[LostItem]:
    async with connected(settings) as connection:
        return await lost_items(connection, service, code=code, limit=limit)


def _row(item: LostItem) -> list[Any]:
    since = f"{item.decided_at:%Y-%m-%d %H:%M:%SZ}"
    where = escape(scope_text(item.tenant, item.brand))
    state = "quarantined, needs --force" if item.is_quarantined else item.outcome
    state = state if item.replay is None else f"replay by run {item.replay}"
    return [item.code, where, escape(item.key), state, since, item.run, escape(item.error_message or "")]
