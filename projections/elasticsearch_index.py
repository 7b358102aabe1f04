"""The index behind a sink, its template and its aliases: made, compared with what is declared, made anew."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol

from elasticsearch import ApiError, AsyncElasticsearch

from projections.documents import DELETED, DELETED_AT
from projections.elasticsearch_errors import translated
from projections.elasticsearch_schema import Difference, Kind, analysis_differences, differences, has_analysis
from tidegate_kernel.errors import Misconfigured, NeedsRebuild, Transient

ONLY_LIVE: Mapping[str, Any] = {"bool": {"must_not": [{"term": {DELETED: {"value": True}}}]}}
"""What the readers' alias lets through."""

_OURS = (DELETED, DELETED_AT)
# Above what Elasticsearch brings along and what is usual: only one template makes an index, the highest.
_TEMPLATE_PRIORITY = 500
# Of a template that is only asked for how the server spells it; no other template may have the same.
_ASKED_PRIORITY = 7_000_000_007
_JSON = {"accept": "application/json", "content-type": "application/json"}


class DeclaredIndex(Protocol):
    """What the sink has to know of its index; `projections.elasticsearch.Elasticsearch` says it."""

    @property
    def index(self) -> str: ...
    @property
    def physical(self) -> str: ...
    @property
    def write_alias(self) -> str: ...
    @property
    def all_mappings(self) -> dict[str, Any]: ...
    @property
    def all_settings(self) -> dict[str, Any]: ...
    @property
    def new_fields(self) -> Literal["rebuild", "add"]: ...
    @property
    def max_document_bytes(self) -> int: ...
    @property
    def max_request_bytes(self) -> int: ...


class PhysicalIndex:
    """One index of a declaration. Every method raises Transient or Misconfigured."""

    def __init__(self, declared: DeclaredIndex, client: AsyncElasticsearch) -> None:
        self._declared, self._client = declared, client
        self._what = f"index {declared.physical!r}"

    async def prepare(self) -> None:
        """Template, index and aliases are there as declared. Raises NeedsRebuild, and changes nothing then."""
        with translated(self._declared.index):
            found = await self._found()
            if found is None:
                await self._put_template()
                await self._create()
            else:
                additions = await self._additions(found)
                await self._put_template()
                if additions:
                    await self._client.indices.put_mapping(index=self._declared.physical, **self._declared.all_mappings)
                await self._put_aliases()
        await self.check()

    async def check(self) -> None:
        """Raises NeedsRebuild where the index is not as declared, Misconfigured for what `prepare` would make."""
        with translated(self._declared.index):
            found = await self._found()
            if found is None:
                raise self._lacking(f"{self._what} is not there")
            if additions := await self._additions(found):
                raise self._lacking(f"{self._what}: {'; '.join(each.sentence for each in additions)}")
            await self._check_aliases(found["aliases"])
            await self._check_template()

    async def reset(self) -> None:
        """The index is there as declared, without a document. Killed in between, it is not there, or that already."""
        with translated(self._declared.index):
            # First: the new index must not take over fields of an old template.
            await self._put_template()
            await self._client.indices.delete(index=self._declared.physical, ignore_unavailable=True)
            if not await self._create():
                raise Transient(f"{self._what} was made by somebody else while it was being made anew; try again")
        await self.check()

    async def documents(self) -> int:
        """How many readers could see; 0 where there is no index."""
        with translated(self._declared.index):
            # What nobody has refreshed yet would not be counted.
            await self._client.indices.refresh(index=self._declared.physical, ignore_unavailable=True)
            counted = await self._client.count(index=self._declared.physical, query=ONLY_LIVE, ignore_unavailable=True)
        return int(counted["count"])

    async def _found(self) -> dict[str, Any] | None:
        answer = await self._client.indices.get(index=self._declared.physical, ignore_unavailable=True)
        found: dict[str, Any] | None = answer.get(self._declared.physical)
        return found

    async def _create(self) -> bool:
        """Whether this call made the index; index and aliases appear together."""
        declared = self._declared
        readers: dict[str, Mapping[str, Any]] = {declared.index: {"filter": ONLY_LIVE}}
        aliases = {**readers, declared.write_alias: {"is_hidden": True}}
        try:
            await self._client.indices.create(
                index=declared.physical, mappings=declared.all_mappings, settings=declared.all_settings, aliases=aliases
            )
        except ApiError as error:
            if error.message == "resource_already_exists_exception":
                return False
            raise
        return True

    async def _additions(self, found: Mapping[str, Any]) -> list[Difference]:
        """What may be added to the index as it is. Raises NeedsRebuild for all that may not."""
        differing = await self._differences(found)
        harmless = [each for each in differing if self._is_harmless(each)]
        if len(harmless) < len(differing):
            raise NeedsRebuild(self._what, [each.sentence for each in differing if each not in harmless])
        return [each for each in harmless if each.kind is Kind.MISSING]

    def _is_harmless(self, each: Difference) -> bool:
        if each.kind is Kind.MISSING:
            # Ours are on tombstones alone, and an older one has none of them.
            return self._declared.new_fields == "add" or each.path in _OURS
        # A release that added it, and was rolled back, or is still rolling.
        return each.kind is Kind.LEFT and self._declared.new_fields == "add"

    async def _differences(self, found: Mapping[str, Any]) -> list[Difference]:
        declared, settings = self._declared.all_mappings, self._declared.all_settings
        spelled = differences(declared, found["mappings"])
        if not spelled and not has_analysis(settings) and not has_analysis(found["settings"]):
            return []
        # The server leaves out defaults and rewrites values: only it can tell whether the two mean the same.
        stored = await self._as_the_server_spells_it()
        if stored is None:
            return spelled
        return [
            *differences(stored.get("mappings", {}), found["mappings"]),
            *analysis_differences(stored.get("settings", {}), found["settings"]),
        ]

    async def _as_the_server_spells_it(self) -> dict[str, Any] | None:
        """Mappings and settings as an index made of the declaration would show them; None where it may not be asked."""
        template = {"mappings": self._declared.all_mappings, "settings": self._declared.all_settings}
        asked = {"index_patterns": [f"{self._declared.physical}-compared"], "template": template}
        try:
            answer = await self._client.perform_request(
                "POST", "/_index_template/_simulate", headers=_JSON, body={**asked, "priority": _ASKED_PRIORITY}
            )
        except ApiError as error:
            if error.status_code == 403:
                return None
            raise
        stored: dict[str, Any] = answer.body["template"]
        return stored

    async def _put_template(self) -> None:
        """Whoever else makes the index, it has our mappings; and nothing is made up by writing to its name."""
        declared = self._declared
        await self._client.indices.put_index_template(
            name=_template_name(declared),
            index_patterns=_patterns(declared),
            priority=_TEMPLATE_PRIORITY,
            allow_auto_create=False,
            template={"mappings": declared.all_mappings, "settings": declared.all_settings},
            meta={"made_by": "tidegate migrate"},
        )

    async def _check_template(self) -> None:
        try:
            await self._client.indices.get_index_template(name=_template_name(self._declared))
        except ApiError as error:
            if error.status_code == 404:
                raise self._lacking(f"index template {_template_name(self._declared)!r} is not there") from error
            if error.status_code != 403:  # whoever only writes need not see templates
                raise

    async def _check_aliases(self, aliases: Mapping[str, Any]) -> None:
        declared = self._declared
        if declared.write_alias not in aliases:
            raise self._lacking(f"alias {declared.write_alias!r} is not there")
        if aliases.get(declared.index, {}).get("filter") != ONLY_LIVE:
            raise self._lacking(f"alias {declared.index!r} does not show {self._what} without its tombstones")
        for alias in (declared.index, declared.write_alias):
            if len(owners := await self._owners(alias)) > 1:
                raise Misconfigured(
                    f"alias {alias!r} is of several indexes, {', '.join(owners)}: readers see documents twice and "
                    f"writes are refused; take it from all but {declared.physical!r}"
                )

    async def _owners(self, alias: str) -> Sequence[str]:
        """The indexes that have an alias."""
        if not await self._client.indices.exists_alias(name=alias):
            return ()
        return sorted((await self._client.indices.get_alias(name=alias)).body)

    async def _put_aliases(self) -> None:
        declared = self._declared
        add = [{"index": declared.physical, "alias": declared.write_alias, "is_hidden": True}]
        # Another generation may own the readers' alias by now: only a swap moves it.
        if set(await self._owners(declared.index)) <= {declared.physical}:
            add.append({"index": declared.physical, "alias": declared.index, "filter": ONLY_LIVE})
        await self._client.indices.update_aliases(actions=[{"add": each} for each in add])

    def _lacking(self, what: str) -> Misconfigured:
        return Misconfigured(f"{what}; run 'tidegate migrate'")


def _template_name(declared: DeclaredIndex) -> str:
    return f"tidegate-{declared.physical}"


def _patterns(declared: DeclaredIndex) -> list[str]:
    """The index, what a rollover or restore beside it is called, and our alias, whose place no index may take."""
    return [declared.physical, f"{declared.physical}-*"]
