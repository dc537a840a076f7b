"""What the fields of registered schemas stand for, so that none comes to stand for another value. Pure.

No registry compares meanings: bytes of a decimal of scale 2 are bytes of one of scale 4, a number of milliseconds is a
number of microseconds, a text is a text in base64. So each is found here, in all three formats by one rule.

| format | a field is | it stands for |
|---|---|---|
| Avro | a name | ``connect.name`` of numbers; decimals by their scale |
| Protobuf | a number, whatever its name | one thing for ever; a decimal has its scale with it |
| JSON Schema | a name | ``cdc.kind``: what numbers count, and base64 |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

import orjson

from cdc.formats.proto import proto_text
from cdc.formats.proto.proto_message import Message
from cdc.formats.schema import KIND, ORIGINAL, TIMES

_T = TypeVar("_T")


class Meaning(NamedTuple):
    """What a field stands for."""

    alike: str
    """The types that readers take for each other, empty: none, or a field never has another meaning."""
    means: str
    """What a value is."""
    column: str
    type: str = ""
    """The column's, where the schema has it."""
    is_told: bool = True
    """Whether the schema says what a value is: those of earlier builds had the column's type alone."""


_NUMBER: Final = "a number"
_TEXT: Final = "a text"


def swapped(type_: str, before: str, now: str) -> list[tuple[str, str]]:
    """Name fields that stand for another column than before, with the column.

    A reader of the schema before would take the one's values for the other's, and no compatibility forbids it. Of Avro
    the column has another field now; else it was renamed. A number of Protobuf's is never given twice.
    """
    were, are = _meanings(type_, before), _meanings(type_, now)
    return [
        (field, was.column)
        for record, fields in were.items()
        for field, was in fields.items()
        if are.get(record, {}).get(field, was).column != was.column
        and (type_ == "PROTOBUF" or was.column in {of.column for of in are[record].values()})
    ]


def meant_otherwise(type_: str, before: str, now: str) -> list[tuple[str, str, str]]:
    """Name fields that have the same bytes for another value than before, with what they were and what they are.

    Registries find such schemas compatible, for Avro's own rule on decimals is in none of its libraries, and a reader
    with a schema of its own (generated classes in Java) takes 1.5001 for 150.01.
    """
    were, are = _meanings(type_, before), _meanings(type_, now)
    return [
        (field, was.means, found.means)
        for record, fields in were.items()
        for field, was in fields.items()
        if (found := are.get(record, {}).get(field)) is not None
        and was.alike == found.alike != ""
        and was.means != found.means
        and (was.is_told or was.type != found.type)
    ]


def _meanings(type_: str, text: str) -> Mapping[str, Mapping[str, Meaning]]:
    """Return what the fields of each record in a schema stand for; nothing of a text that is no schema of ours."""
    try:
        if type_ == "PROTOBUF":
            return dict(_messages(proto_text.parse(text)[1]))
        found = orjson.loads(text)
        return _objects(found) if type_ == "JSON" else _found(found, _of_avro)
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}


def _of_avro(field: Mapping[str, Any]) -> Meaning:
    type_, column = field["type"], str(field.get(ORIGINAL, field["name"]))
    if isinstance(type_, list):
        type_ = next((form for form in type_ if form != "null"), "null")
    about = type_ if isinstance(type_, dict) else {"type": type_}
    if about["type"] in ("int", "long", "float", "double"):
        return Meaning(_NUMBER, str(about.get("connect.name", _NUMBER)), column)
    if about["type"] in ("bytes", "string"):
        is_decimal = about.get("logicalType") == "decimal"
        return Meaning(_TEXT, f"a decimal of scale {about['scale']}" if is_decimal else _TEXT, column)
    return Meaning("", "", column)


def _messages(of: Message) -> list[tuple[str, Mapping[str, Meaning]]]:
    fields = {
        str(field.number): Meaning("", "", field.name)  # no number is ever given to another meaning
        for field in of.fields
    }
    inner = [found for field in of.fields if field.message is not None for found in _messages(field.message)]
    return [(of.name, fields), *inner]


def _objects(of: Mapping[str, Any]) -> Mapping[str, Mapping[str, Meaning]]:
    """Return the properties of a row or key, or of an event's row; of the rest none ever changes."""
    rows = of["properties"]
    if str(of["title"]).endswith(".Envelope"):
        (rows,) = (form["properties"] for form in rows["after"]["oneOf"] if "properties" in form)
    return {"": {name: _of_json(name, about) for name, about in rows.items()}}


def _of_json(name: str, about: Mapping[str, Any]) -> Meaning:
    types, kind, column_type = about["type"], str(about.get(KIND, "")), str(about.get("title", ""))
    is_told = bool(kind) or not column_type
    if "number" in types or "integer" in types:
        return Meaning(_NUMBER, kind if kind in TIMES else _NUMBER, name, column_type, is_told)
    if "string" in types and "array" not in types:
        return Meaning(_TEXT, kind or _TEXT, name, column_type, is_told)
    return Meaning("", "", name)


def records(of: Any) -> dict[str, dict[str, str]]:  # noqa: ANN401 - JSON
    """Return what the fields of each record in a schema of Avro are called at the source."""
    return _found(of, lambda field: str(field.get(ORIGINAL, field["name"])))


def _found(of: Any, tell: Callable[[Mapping[str, Any]], _T]) -> dict[str, dict[str, _T]]:  # noqa: ANN401 - JSON
    """Return what is told of the fields of each record in a schema."""
    found: dict[str, dict[str, _T]] = {}
    if isinstance(of, list):
        for part in of:
            found |= _found(part, tell)
    elif isinstance(of, dict):
        if of.get("type") == "record":
            found[str(of.get("name"))] = {field["name"]: tell(field) for field in of["fields"]}
        for part in of.values():
            found |= _found(part, tell)
    return found
