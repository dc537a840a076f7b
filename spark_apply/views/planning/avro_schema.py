"""Tells which schemas of Avro Spark reads as they are meant. Pure. https://avro.apache.org/docs/1.12.0/specification/"""

from __future__ import annotations

import json
from typing import Any, Final

_PRIMITIVES: Final = frozenset({"null", "boolean", "int", "long", "float", "double", "bytes", "string"})
_RECORDS: Final = ("record", "error")


def refusal(text: str) -> str | None:
    """Return why events by this schema cannot be read, or would be read as others; None: they can."""
    try:
        schema = json.loads(text)
        if not isinstance(schema, dict) or schema.get("type") not in _RECORDS:
            return "its records are no objects with fields"
        _look(schema, "", {}, "")
    except _Unfit as exc:
        return str(exc)
    except (ValueError, TypeError, LookupError, AttributeError, RecursionError):
        return "it is no schema of Avro"
    return None


class _Unfit(Exception):  # noqa: N818 - it is no error
    """What a schema has that is not read here."""


def _look(schema: Any, within: str, known: dict[str, bool | None], at: str) -> bool:  # noqa: ANN401 - JSON
    """Return whether its values may have no bytes. `known`: the same by name, None while that is looked at."""
    if isinstance(schema, list):
        if len([form for form in schema if form != "null"]) > 1:
            raise _Unfit(f"{at} is of several types")
        for form in schema:
            _look(form, within, known, at)
        return False
    if isinstance(schema, str):
        return schema == "null" if schema in _PRIMITIVES else _named(schema, within, known, at)
    type_ = schema["type"]
    if type_ == "array":
        if _look(schema["items"], within, known, at):
            raise _Unfit(f"{at} is of items that have no bytes: any number of them may be in a record")
        return False
    if type_ == "map":
        _look(schema["values"], within, known, at)
        return False
    if type_ not in (*_RECORDS, "enum", "fixed"):
        return _look(type_, within, known, at)
    name = _full(schema["name"], schema.get("namespace", within))
    if type_ not in _RECORDS:
        known[name] = schema.get("size") == 0
        return bool(known[name])
    known[name] = None
    inner = name.rpartition(".")[0]
    empty = [_look(of["type"], inner, known, f"{at}.{of['name']}".lstrip(".")) for of in schema["fields"]]
    known[name] = all(empty)
    return all(empty)


def _named(name: str, within: str, known: dict[str, bool | None], at: str) -> bool:
    full = next((each for each in (_full(name, within), name) if each in known), None)
    if full is None:
        raise _Unfit(f"{at} is {name}, which is another schema of the registry (a reference)")
    found = known[full]
    if found is None:
        raise _Unfit(f"{at} is {name} again, in which it stands")
    return found


def _full(name: str, within: str) -> str:
    return name if "." in name or not within else f"{within}.{name}"
