"""Reads CloudEvents of Kafka records in binary mode, and refuses what the specification does.

https://github.com/cloudevents/spec/blob/v1.0.2/cloudevents/spec.md
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

_RFC3339: Final = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)")
_MEDIA_TYPE: Final = re.compile(r"[a-z]+/[a-z0-9.+-]+")
_REQUIRED: Final = ("id", "source", "specversion", "type")


def attributes(headers: Sequence[tuple[str, bytes]], value: bytes | None) -> dict[str, str] | None:
    """Return a record's attributes; None: it is no CloudEvent."""
    names = [name for name, _ in headers]
    assert len(set(names)) == len(names), names
    found = {name.removeprefix("ce_"): text.decode() for name, text in headers if name.startswith("ce_")}
    if not found:
        assert "content-type" not in names
        return None
    for name, text in found.items():
        assert re.fullmatch("[a-z0-9]+", name), name
        assert text, name
        assert not re.search(r"[\x00-\x1f\x7f-\x9f\ud800-\udfff]", text), name
    assert all(found.get(name) for name in _REQUIRED), found
    assert found["specversion"] == "1.0"
    assert _RFC3339.fullmatch(found["time"]), found["time"]
    assert urlsplit(found["source"]).path == found["source"]
    assert ("content-type" in names) == (value is not None)
    if value is not None:
        found["datacontenttype"] = dict(headers)["content-type"].decode()
        assert _MEDIA_TYPE.fullmatch(found["datacontenttype"])
    return found
