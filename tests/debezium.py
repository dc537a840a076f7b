"""Whether a record is one that a consumer of Debezium's PostgreSQL connector can read: by its documentation.

The envelope is `debezium_envelope.schema.json`. What a schema of one value cannot say is here: a record of a compacted
topic has a key, a tombstone is a null value, and an event is about the row its key names.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

from jsonschema import Draft202012Validator

SCHEMA = Path(__file__).with_name("debezium_envelope.schema.json")


def validate(key: bytes | None, value: bytes | None) -> None:
    """Raise AssertionError, naming the field and the rule, for a record that Debezium would not write."""
    assert key is not None, "a record without a key: a compacted topic refuses it"
    key_read = _read(key, "key")
    _hold(_validator("key"), key_read, "key")
    if value is None:
        return  # a tombstone
    event = _read(value, "value")
    _hold(_validator(None), event, "value")
    for name in ("before", "after"):
        image = event.get(name)
        if event["op"] in ("c", "r", "u", "d") and image is not None and (name == "after" or event["op"] == "d"):
            for column, part in key_read.items():
                assert column in image, f"{name}: the key column {column} is missing"
                assert image[column] == part, f"{name}: the key column {column} is not the key's"


def _read(data: bytes, what: str) -> Any:
    """Strict JSON: UTF-8, no NaN, no name twice in an object."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{what}: {constant} is not JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        assert len(names) == len(set(names)), f"{what}: a name twice in one object: {names}"
        return dict(pairs)

    try:
        return json.loads(data.decode("utf-8"), parse_constant=refuse, object_pairs_hook=once)
    except (UnicodeDecodeError, json.JSONDecodeError) as exc:
        raise AssertionError(f"{what}: not JSON in UTF-8") from exc


@cache
def _validator(definition: str | None) -> Draft202012Validator:
    schema = json.loads(SCHEMA.read_text(encoding="utf-8"))
    Draft202012Validator.check_schema(schema)
    if definition is None:
        return Draft202012Validator(schema)
    return Draft202012Validator({"$schema": schema["$schema"], **schema["$defs"][definition]})


def _hold(validator: Draft202012Validator, instance: Any, what: str) -> None:
    found = sorted(validator.iter_errors(instance), key=lambda error: error.json_path)
    assert not found, f"{what}: " + "; ".join(f"{e.json_path}: {e.validator} {e.validator_value!r}" for e in found)
