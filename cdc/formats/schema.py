"""A schema as Kafka Connect has it, in which Debezium describes its records; and the same for Avro. Pure.

| here | Connect's JSON | Avro |
|---|---|---|
| `optional` | ``"optional":true`` | a union with ``null``, which is the default |
| `name`, `version`, `parameters` | the same words | ``connect.name``, ``connect.version``, ``connect.parameters`` |
| ``int16`` | ``int16`` | ``int`` with ``connect.type`` |
| a struct | ``struct`` | a record, described where it stands first |

As in Connect's JsonConverter and in Confluent's AvroData, which is how Debezium's records come to be:
https://debezium.io/documentation/reference/stable/configuration/avro.html
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from cdc.model.errors import TopicError

DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Schema:
    """A schema of values."""

    type: str
    """One of ``int16 int32 int64 float32 float64 boolean string bytes array struct``."""
    name: str | None = None
    version: int | None = None
    parameters: Mapping[str, str] = field(default_factory=dict)
    optional: bool = False
    fields: tuple[tuple[str, Schema], ...] = ()
    items: Schema | None = None

    def or_null(self) -> Schema:
        return replace(self, optional=True)

    def required(self) -> Schema:
        return replace(self, optional=False)


def connect(schema: Schema) -> dict[str, Any]:
    """Write a schema as JsonConverter does, members in its order."""
    written: dict[str, Any] = {"type": _FLOATS.get(schema.type, schema.type)}
    if schema.type == "struct":
        written["fields"] = [{**connect(of), "field": name} for name, of in schema.fields]
    if schema.items is not None:
        written["items"] = connect(schema.items)
    written["optional"] = schema.optional
    if schema.name is not None:
        written["name"] = schema.name
    if schema.version is not None:
        written["version"] = schema.version
    if schema.parameters:
        written["parameters"] = dict(schema.parameters)
    return written


_FLOATS: Final = {"float32": "float", "float64": "double"}
"""What JsonConverter calls them."""
_AVRO: Final = {"int16": "int", "int32": "int", "int64": "long", **_FLOATS}
KIND: Final = "cdc.kind"
"""A field's property, in formats that have no name for what their numbers and texts stand for: one of `TOLD`."""
TIMES: Final = frozenset({"date", "time_micros", "timestamp_millis", "timestamp_micros"})
"""Kinds that are numbers, of which one is not read as another."""
TOLD: Final = TIMES | {"bytes"}
ORIGINAL: Final = "cdc.name"
"""A field's property: its name in the source, if Avro does not have such names."""


def avro(schema: Schema) -> dict[str, Any] | list[Any] | str:
    """Write a schema in Avro."""
    return _avro(schema, set())


def _avro(schema: Schema, described: set[str]) -> dict[str, Any] | list[Any] | str:
    written = _without_null(schema, described)
    return ["null", written] if schema.optional else written


def _without_null(schema: Schema, described: set[str]) -> dict[str, Any] | str:
    about: dict[str, Any] = {}
    if schema.version is not None:
        about["connect.version"] = schema.version
    if schema.parameters:
        about["connect.parameters"] = dict(schema.parameters)
    if schema.name is not None:
        about["connect.name"] = schema.name
    if schema.type == "struct":
        full = full_name(schema.name or "")
        if full in described:
            return full
        described.add(full)
        namespace, _, name = full.rpartition(".")
        names = field_names((name for name, _ in schema.fields), full)
        return {
            "type": "record",
            "name": name,
            **({"namespace": namespace} if namespace else {}),
            "fields": [_field(names[name], name, of, described) for name, of in schema.fields],
            **about,
        }
    if schema.items is not None:
        return {"type": "array", "items": _avro(schema.items, described), **about}
    if schema.name == DECIMAL:
        parameters = schema.parameters
        about |= {
            "logicalType": "decimal",
            "precision": int(parameters["connect.decimal.precision"]),
            "scale": int(parameters["scale"]),
        }
    if schema.type == "int16":
        about["connect.type"] = "int16"
    type_ = _AVRO.get(schema.type, schema.type)
    return {"type": type_, **about} if about else type_


def _field(written: str, name: str, of: Schema, described: set[str]) -> dict[str, Any]:
    return {
        "name": written,
        "type": _avro(of, described),
        **({"default": None} if of.optional else {}),
        **({"doc": name, ORIGINAL: name} if written != name else {}),
    }


_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_]")


def adjusted(name: str, by: str | None = None) -> str:
    """Make a name that Avro has, as Debezium's adjustment does; with `by` ``u`` it says which characters were there."""
    written = _NOT_IN_NAMES.sub(lambda found: "_" if by is None else f"_{by}{ord(found[0]):04x}", name)
    if by is not None and written[:1].isdigit():
        return f"_{by}{ord(written[0]):04x}{written[1:]}"
    return f"_{written}" if not written or written[0].isdigit() else written


def full_name(name: str) -> str:
    """Make the full name of a record, part by part."""
    return ".".join(adjusted(part) for part in name.split("."))


def field_names(names: Iterable[str], of: str = "") -> dict[str, str]:
    """Give each field's name in Avro: adjusted; of names that would be the same, with what their characters were.

    Raises TopicError, about the record that they are `of`, if that is not enough.
    """
    names = list(names)
    simple = {name: adjusted(name) for name in names}
    made = {
        name: written if written == name or list(simple.values()).count(written) == 1 else adjusted(name, "u")
        for name, written in simple.items()
    }
    alike = [n for n in names if n != made[n] and list(made.values()).count(made[n]) > 1]
    if alike:
        raise TopicError(
            f"columns {', '.join(alike)}: Avro has no such names, and another column is called {made[alike[0]]}",
            hint="another format for this table (sink.formats), or a column left out: source.columns; or rename one. A "
            "connector that runs looks again after ten minutes, or at once: cdc reload CONNECTOR.yaml",
            topic=of,
        )
    return made
