"""What a registry's text of a schema says of a table: its name, and the columns of its rows. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from cdc.formats.meanings import records
from cdc.formats.proto import proto_text


def is_of(type_: str, text: str, ours: Iterable[str], columns: Iterable[str]) -> bool:
    """Whether a schema of values has one of the names `ours` and is of rows with these columns, and of no others."""
    try:
        if type_ == "PROTOBUF":
            name, found = _message(text)
        else:
            name, found = (_record if type_ == "AVRO" else _object)(orjson.loads(text))
    except (ValueError, LookupError, TypeError, AttributeError):  # somebody else's, of another form
        return False
    wanted = set(columns)
    return (
        name in set(ours) and {column for column in found if column in wanted or not column.startswith("__")} == wanted
    )


def _message(text: str) -> tuple[str, Iterable[str]]:
    package, message = proto_text.parse(text)
    name = f"{package}.{message.name}" if package else message.name
    if message.name == "Envelope":
        message = proto_text.image_of(message) or message
    return name, [of.name for of in message.fields if not of.deprecated]


def _record(of: Mapping[str, Any]) -> tuple[str, Iterable[str]]:
    name, space = str(of["name"]), of.get("namespace")
    return f"{space}.{name}" if space and "." not in name else name, _of_rows(records(of)).values()


def _of_rows(found: Mapping[str, Mapping[str, str]]) -> Mapping[str, str]:
    """Return the fields of the record of rows; a registry may have written its namespace before its name."""
    return next((fields for name, fields in found.items() if name.rpartition(".")[2] == "Value"), {})


def _object(of: Mapping[str, Any]) -> tuple[str, Iterable[str]]:
    return str(of["title"]), [name for name, about in _properties(of).items() if not about.get("deprecated")]


def _properties(of: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what a JSON Schema says of a row's members."""
    row: Mapping[str, Any] = of["properties"]
    if str(of["title"]).endswith(".Envelope"):
        (row,) = (form["properties"] for form in row["after"]["oneOf"] if "properties" in form)
    return row


def gone(text: str | None, members: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return what a JSON Schema says of the members of rows that are none of `members`; nothing if it is none of ours.

    What was said of the type at the source is left out: it may have labels.
    """
    there = set(members)
    try:
        found: Mapping[str, Any] = {} if text is None else _properties(orjson.loads(text))
        left = {name: dict(about) for name, about in sorted(found.items()) if name not in there}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}
    return {
        name: {**{word: told for word, told in about.items() if word != "title"}, "deprecated": True}
        for name, about in left.items()
    }


def name_of(text: str) -> str:
    """Return what a schema is called: a record's or message's full name, or a title."""
    try:
        found: Any = orjson.loads(text)
    except ValueError:
        return _message_name(text)
    if not isinstance(found, dict):
        return str(found)
    name = str(found.get("title") or found.get("name") or found.get("type"))
    return f"{found['namespace']}.{name}" if found.get("namespace") and "." not in name else name


def _message_name(text: str) -> str:
    try:
        package, message = proto_text.parse(text)
    except ValueError:
        return "no schema of a connector"
    return f"{package}.{message.name}" if package else message.name
