"""What ``cdc view explain`` says to people. Pure: out of its JSON."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from cdc.cli.terminal import aligned

_OUTCOMES: Final = {
    "row": "its row is what the SQL gives",
    "none": "the SQL gives no row of this key, and none is published",
    "quarantined": "its unit is in quarantine: {quarantined}; it keeps the rows that it had until that is put right",
    "stopped": "the view is stopped: {stopped}",
    "differs": "what is published is not what the SQL gives: cdc view verify VIEWS.yaml --repair puts it right",
}


def told(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines for people."""
    yield from aligned(
        [
            ("outcome", _OUTCOMES[found["outcome"]].format_map(found)),
            ("position", f"{found['position']}, clock {_instant(found['clock_ms'])}"),
            ("published", _json(found["published"])),
            ("computed", _json(found["computed"])),
            ("unit", "the whole view" if found["unit"] is None else _json(found["unit"])),
            ("deadline", found["deadline"] or "-"),
            ("changed by", _cause(found["changed_by"])),
        ]
    )
    for row in found["derived_from"]:
        yield f"derived from {_row(row)}"
    for table in found["more"]:
        yield f"derived from more rows of {table}"


def why_no_record(found: Mapping[str, Any]) -> str:
    """Say why the topic has no record of the key."""
    if found["outcome"] in ("quarantined", "stopped"):
        return str(_OUTCOMES[found["outcome"]].format_map(found))
    if found["computed"] is not None:
        return "the SQL gives a row of it: cdc view verify VIEWS.yaml --repair publishes what is missing"
    return "the view never had it, or its delete is older than delete.retention.ms; keys are as the topic has them"


def _cause(changed: Mapping[str, Any] | None) -> str:
    if changed is None:
        return "-"
    event = f"event {changed['op']} at {changed['position']}, step to {changed['source_position']}"
    if changed["clock"]:
        return f"{event}: the clock, {_instant(changed['clock_ms'])}"
    return f"{event}: {_list(changed['rows'])}"


def _list(rows: Iterable[Mapping[str, Any]]) -> str:
    return "; ".join(map(_row, rows)) or "a row that is gone"


def _row(row: Mapping[str, Any]) -> str:
    return f"{row['table']} {_json(row['key'])} of {row['position']}"


def _json(value: object) -> str:
    return "-" if value is None else json.dumps(value, ensure_ascii=False)


def _instant(at_ms: int | None) -> str:
    return "-" if not at_ms else datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="milliseconds")
