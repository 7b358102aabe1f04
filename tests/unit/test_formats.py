"""What JSON payload becomes: an event model, or one exact reason why not."""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, field_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from consumers.formats import Json
from tidegate_kernel.errors import InvalidEvent, Misconfigured, Poison, Reason


class OrderStruct(msgspec.Struct):
    id: int = 0
    amount: float = 0.0
    name: str = ""


class Foreign:
    pass


class HoldsForeign(msgspec.Struct):
    foreign: Foreign


class OrderModel(BaseModel):
    id: int = 0
    amount: float = 0.0
    name: str = ""


@dataclass
class OrderData:
    id: int = 0
    amount: float = 0.0
    name: str = ""


@pydantic_dataclass
class OrderPydanticData:
    id: int = 0
    amount: float = 0.0
    name: str = ""


MODELS: list[type[Any]] = [OrderStruct, OrderModel, OrderData, OrderPydanticData]
EVERY_MODEL: list[type[Any]] = [*MODELS, dict]
HUGE = 12345678901234567890123
SECRET = "4111-1111"


def refusal(model: type[Any], payload: bytes) -> Poison:
    with pytest.raises(Poison) as caught:
        Json().decoder(model)(payload)
    return caught.value


@pytest.mark.parametrize("model", MODELS)
def test_payload_becomes_the_model(model: type[Any]) -> None:
    """The four ways to write an event model read the same payload."""
    event = Json().decoder(model)(b'{"id":1,"amount":2.5,"name":"a","new":[1]}')

    assert (type(event), event.id, event.amount, event.name) == (model, 1, 2.5, "a")


def test_payload_inside_an_envelope_decodes_without_a_copy_of_its_own() -> None:
    """Structured envelopes hand over a view of their value, not bytes."""
    raw = msgspec.Raw(b'{"id":1}')

    assert [Json().decoder(model)(raw).id for model in MODELS] == [1, 1, 1, 1]


@pytest.mark.parametrize("model", EVERY_MODEL)
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e999"])
def test_number_that_no_store_takes_is_refused_at_decoding(model: type[Any], number: str) -> None:
    """Case 30: Elasticsearch, ClickHouse and Postgres would refuse it later, together with its neighbours."""
    error = refusal(model, f'{{"amount": {number}}}'.encode())

    assert error.reason is Reason.INVALID_NUMBER


@pytest.mark.parametrize("payload", [b'{"amount":"NaN"}', b'{"amount":"-inf"}', b'{"amount":' + b"9" * 400 + b"}"])
def test_pydantic_float_that_is_not_finite_is_refused(payload: bytes) -> None:
    """Case 30: pydantic makes an infinity of text and of long integers, which are good JSON."""
    assert refusal(OrderModel, payload).reason is Reason.INVALID_NUMBER


def test_infinity_deep_inside_a_pydantic_model_is_refused() -> None:
    """Case 30: a store sees the whole document, not only its first level."""

    class Line(BaseModel):
        prices: dict[str, list[float]]

    class Basket(BaseModel):
        lines: tuple[Line, ...]

    assert refusal(Basket, b'{"lines":[{"prices":{"eur":[1.0,"Infinity"]}}]}').reason is Reason.INVALID_NUMBER


def test_decimal_that_is_not_a_number_is_refused() -> None:
    """Case 30: msgspec reads the text "NaN" as a Decimal."""

    class Price(msgspec.Struct):
        amount: Decimal

    assert refusal(Price, b'{"amount":"NaN"}').reason is Reason.INVALID_NUMBER
    assert Json().decoder(Price)(b'{"amount":"12.30"}').amount == Decimal("12.30")


@pytest.mark.parametrize("model", EVERY_MODEL)
@pytest.mark.parametrize(
    "text", [b'"\\ud83d"', b'"\\ude00"', b'"a\\ud83d b"', b'"\xff"', b'"\xed\xa0\xbd"', b'"\xc3("']
)
def test_text_that_is_no_unicode_is_refused(model: type[Any], text: bytes) -> None:
    """Case 31: half a surrogate pair cannot be written to any store, log or dead letter as UTF-8."""
    error = refusal(model, b'{"name":' + text + b"}")

    assert error.reason is Reason.INVALID_TEXT
    str(error).encode("utf-8")


@pytest.mark.parametrize("model", MODELS)
def test_nul_in_text_is_accepted(model: type[Any]) -> None:
    """Case 32: it is JSON, and only Postgres text cannot hold it: there it is refused, not here."""
    assert Json().decoder(model)(b'{"name":"a\\u0000b"}').name == "a\0b"


@pytest.mark.parametrize("model", EVERY_MODEL)
@pytest.mark.parametrize(
    "payload, reason",
    [
        (b"\xef\xbb\xbf{}", Reason.UNDECODABLE),
        (b"", Reason.UNDECODABLE),
        (b"\xff\xfe", Reason.UNDECODABLE),
        (b"{", Reason.UNDECODABLE),
        (b"{} x", Reason.UNDECODABLE),
        (b"{'id': 1}", Reason.UNDECODABLE),
        (b'{"name":"a\nb"}', Reason.UNDECODABLE),
        (b'{"x":' * 100_000, Reason.UNDECODABLE),
        (b"[]", Reason.INVALID_EVENT),
        (b'"str"', Reason.INVALID_EVENT),
        (b"null", Reason.INVALID_EVENT),
        (b"1", Reason.INVALID_EVENT),
        (b'{"id":' + b"1" * 5000 + b"}", Reason.INVALID_NUMBER),
    ],
)
def test_payload_that_is_no_object_has_its_exact_reason(model: type[Any], payload: bytes, reason: Reason) -> None:
    """Case 34: the operator reads the reason and knows whether the bytes, the number or the shape is wrong."""
    assert refusal(model, payload).reason is reason


@pytest.mark.parametrize("model", MODELS)
def test_last_of_repeated_keys_counts(model: type[Any]) -> None:
    """Case 34: every reader of a topic must see the same value."""
    assert Json().decoder(model)(b'{"id":1,"id":2}').id == 2


@pytest.mark.parametrize("model", MODELS)
def test_huge_integer_keeps_its_value(model: type[Any]) -> None:
    """Case 34: decoding must not round; a store with 64-bit integers refuses it by name."""
    assert Json().decoder(model)(b'{"id":12345678901234567890123}').id == HUGE
    assert Json().decoder(dict)(b'{"id":12345678901234567890123}') == {"id": HUGE}


@pytest.mark.parametrize("model", MODELS)
def test_wrong_field_is_named_and_its_value_is_not(model: type[Any]) -> None:
    """Messages go to logs and pages that people without access to payloads read."""
    error = refusal(model, f'{{"id":"{SECRET}"}}'.encode())

    assert error.reason is Reason.INVALID_EVENT
    assert "$.id" in str(error)
    assert SECRET not in str(error)


def test_missing_field_is_named() -> None:
    """The producer's team can act on it without seeing the payload."""

    class Struct(msgspec.Struct):
        order_id: str

    class Model(BaseModel):
        order_id: str

    assert "`order_id`" in str(refusal(Struct, b"{}"))
    assert str(refusal(Model, b"{}")) == "'Model': $.order_id missing"


def test_keys_that_the_payload_chose_are_not_told() -> None:
    """A key of a mapping can be a customer's name."""

    class Struct(msgspec.Struct, forbid_unknown_fields=True):
        by_card: dict[str, int]
        kind: Literal["a"] = "a"

    class Model(BaseModel, extra="forbid"):
        by_card: dict[str, int]
        kind: Literal["a"] = "a"

    for payload in (
        f'{{"by_card":{{"{SECRET}":"x"}}}}',
        f'{{"by_card":{{}},"{SECRET}":1}}',
        f'{{"by_card":{{}},"kind":"{SECRET}"}}',
    ):
        models: list[type[Any]] = [Struct, Model]
        for model in models:
            assert SECRET not in str(refusal(model, payload.encode()))


def test_what_a_models_own_check_says_is_not_told() -> None:
    """A validator's message likes to quote the value."""

    class Struct(msgspec.Struct):
        name: str

        def __post_init__(self) -> None:
            raise ValueError(f"Expected something else than {self.name}")

    class Model(BaseModel):
        name: str

        @field_validator("name")
        @classmethod
        def _refuse(cls, value: str) -> str:
            raise ValueError(f"bad name {value}")

    models: list[type[Any]] = [Struct, Model]
    for model in models:
        error = refusal(model, f'{{"name":"{SECRET}"}}'.encode())
        assert error.reason is Reason.INVALID_EVENT
        assert SECRET not in str(error)


def test_many_errors_are_bounded() -> None:
    """A list of a thousand wrong items must not make a message of a thousand lines."""

    class Model(BaseModel):
        items: list[int]

    error = refusal(Model, msgspec.json.encode({"items": ["x"] * 1000}))

    assert str(error).endswith("and 997 more")


def test_model_with_a_type_that_msgspec_does_not_know_is_refused_at_start() -> None:
    """Otherwise every single event would become a dead letter."""

    with pytest.raises(Misconfigured, match="'HoldsForeign'"):
        Json().decoder(HoldsForeign)


def test_model_with_a_type_that_does_not_exist_is_refused_at_start() -> None:
    """A typing mistake in a model is the developer's, not the events'."""

    class Struct(msgspec.Struct):
        order: Missing  # type: ignore[name-defined]  # noqa: F821  # the mistake

    class Model(BaseModel):
        order: Missing  # type: ignore[name-defined]  # noqa: F821  # the mistake

    models: list[type[Any]] = [Struct, Model]
    for model in models:
        with pytest.raises(Misconfigured):
            Json().decoder(model)


@pytest.mark.parametrize("model", MODELS)
def test_lifted_object_becomes_the_model(model: type[Any]) -> None:
    """Upcasts work on plain objects; their result is held to the same model."""
    convert = Json().converter(model)

    assert convert({"id": 1, "amount": 2.0, "name": "a"}).id == 1
    with pytest.raises(InvalidEvent, match=r"\$\.name"):
        convert({"name": 5})
    with pytest.raises(Poison) as caught:
        convert({"amount": float("nan")})
    assert caught.value.reason is Reason.INVALID_NUMBER


@pytest.mark.parametrize("model", MODELS)
def test_encoded_model_decodes_to_itself(model: type[Any]) -> None:
    """`publish` and `send` write what this format reads."""
    event = model(id=1, amount=2.5, name="a\0ü")

    assert Json().decoder(model)(Json().encode(event)) == event


@pytest.mark.parametrize("model", MODELS)
def test_nan_is_not_encoded(model: type[Any]) -> None:
    """msgspec and pydantic would write null: another value than the application meant."""
    event = model()
    event.amount = float("nan")

    with pytest.raises(InvalidEvent) as caught:
        Json().encode(event)
    assert caught.value.reason is Reason.INVALID_NUMBER


nearly_json = st.recursive(
    st.sampled_from(
        [
            b"1",
            b"-0",
            b"1e999",
            b"NaN",
            b"null",
            b"true",
            b'"a"',
            b'"\\ud83d"',
            b'"\xff"',
            b'"\\u0000"',
            b"9" * 400,
            b'"inf"',
            b"",
        ]
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(lambda parts: b"[" + b",".join(parts) + b"]"),
        st.dictionaries(st.sampled_from([b"id", b"amount", b"name", b"\xff", b"x"]), inner, max_size=4).map(
            lambda fields: b"{" + b",".join(b'"' + k + b'":' + v for k, v in fields.items()) + b"}"
        ),
    ),
    max_leaves=8,
)


# The clock of a busy machine is not what this test is about.
@given(payload=st.one_of(st.binary(max_size=60), nearly_json))
def test_only_poison_leaves_a_decoder_whatever_the_bytes(payload: bytes) -> None:
    """Anything else would stop the partition for a record that will never get better."""
    for decode in _DECODERS:
        try:
            decode(payload)
        except Poison as error:
            str(error).encode("utf-8")


_DECODERS = [Json().decoder(model) for model in EVERY_MODEL]
