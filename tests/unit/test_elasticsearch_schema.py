"""A declared mapping against an index's: what differs, in words that say where."""

from __future__ import annotations

from typing import Any

import pytest

from projections.elasticsearch_schema import Kind, analysis_differences, differences, has_analysis

LONG = {"type": "long"}


def mapping(dynamic: Any = "strict", **properties: Any) -> dict[str, Any]:
    return {"dynamic": dynamic, "properties": properties}


def test_equal_mappings_do_not_differ() -> None:
    """A job that starts as it was left must start."""
    same = mapping(cents=LONG, address={"properties": {"city": {"type": "keyword", "index": False}}})

    assert differences(same, same) == []


@pytest.mark.parametrize(
    "declared,found,sentence",
    [
        ({"type": "keyword"}, LONG, 'field \'x\' is {"type":"long"}, declared {"type":"keyword"}'),
        ({**LONG, "index": False}, LONG, 'field \'x\' is {"type":"long"}, declared {"index":false,"type":"long"}'),
        (
            {"type": "text", "analyzer": "english"},
            {"type": "text"},
            'field \'x\' is {"type":"text"}, declared {"analyzer":"english","type":"text"}',
        ),
        (
            {"type": "date"},
            {"type": "date", "format": "epoch_second"},
            'field \'x\' is {"format":"epoch_second","type":"date"}, declared {"type":"date"}',
        ),
        (
            {"type": "text", "fields": {"raw": {"type": "keyword"}}},
            {"type": "text"},
            'field \'x\' is {"type":"text"}, declared {"fields":{"raw":{"type":"keyword"}},"type":"text"}',
        ),
    ],
)
def test_whole_definitions_are_compared(declared: dict[str, Any], found: dict[str, Any], sentence: str) -> None:
    """Types alone would let another analyzer pass, and half of the documents be found by other words than the rest."""
    (difference,) = differences(mapping(x=declared), mapping(x=found))

    assert (difference.kind, difference.sentence) == (Kind.CHANGED, sentence)


def test_inner_fields_are_named_by_their_path() -> None:
    """An operator has to find it."""
    declared = mapping(a={"properties": {"b": {"type": "nested", "properties": {"c": {"type": "keyword"}}}}})
    found = mapping(a={"properties": {"b": {"type": "nested", "properties": {"c": LONG, "d": LONG}}}})

    assert [(each.kind, each.path) for each in differences(declared, found)] == [
        (Kind.CHANGED, "a.b.c"),
        (Kind.LEFT, "a.b.d"),
    ]


def test_object_that_became_a_value_is_one_difference() -> None:
    """Its inner fields have nothing to be compared with."""
    declared, found = mapping(a={"type": "keyword"}), mapping(a={"properties": {"b": LONG}})

    assert [each.path for each in differences(declared, found)] == ["a"]


def test_field_on_one_side_only_says_which() -> None:
    """What is missing may be added where the developer says so; what is left over may not vanish."""
    found = differences(mapping(new=LONG), mapping(old=LONG))

    assert [(each.kind, each.path) for each in found] == [(Kind.MISSING, "new"), (Kind.LEFT, "old")]


def test_rules_of_the_whole_mapping_are_compared() -> None:
    """An index that takes unknown fields is not the strict one that was declared (Case 94)."""
    (difference,) = differences(mapping("strict"), mapping("true"))

    assert difference.sentence == '\'dynamic\' is "true", declared "strict"'


def test_rule_that_only_the_index_has_is_a_difference() -> None:
    """Somebody's template may have brought it along."""
    (difference,) = differences(mapping(), {**mapping(), "date_detection": False})

    assert difference.sentence == "'date_detection' is false, not declared"


@pytest.mark.parametrize("dynamic", ["true", "runtime", True])
def test_what_an_open_index_took_up_by_itself_is_no_difference(dynamic: Any) -> None:
    """It was declared so; every start would be refused otherwise."""
    assert differences(mapping(dynamic), mapping(dynamic, seen=LONG)) == []


def test_open_object_in_a_strict_index_takes_up_its_own_fields_alone() -> None:
    """`dynamic` holds for what is below it."""
    free = {"dynamic": "true", "properties": {}}
    found = mapping(free={**free, "properties": {"seen": LONG}}, other=LONG)

    assert [each.path for each in differences(mapping(free=free), found)] == ["other"]


def test_note_in_a_mapping_is_no_difference() -> None:
    """`_meta` shapes no document."""
    assert differences({**mapping(), "_meta": {"a": 1}}, {**mapping(), "_meta": {"a": 2}}) == []


def test_other_analyzer_of_the_same_name_is_a_difference() -> None:
    """The field's definition is the same, and what it finds is not."""
    declared = {"index": {"analysis": {"analyzer": {"plain": {"type": "whitespace"}}}, "number_of_shards": "1"}}
    found = {"index": {"analysis": {"analyzer": {"plain": {"type": "keyword"}}}, "number_of_shards": "2"}}

    assert [each.path for each in analysis_differences(declared, found)] == ["analysis"]


@pytest.mark.parametrize(
    "settings,expected",
    [
        ({"analysis": {}}, True),
        ({"index": {"similarity": {}}}, True),
        ({"index.analysis.analyzer.x.type": "keyword"}, True),
        ({"number_of_shards": 1}, False),
    ],
)
def test_analysis_is_seen_however_it_is_spelled(settings: dict[str, Any], expected: bool) -> None:
    """Elasticsearch takes settings nested and with dots."""
    assert has_analysis(settings) is expected
