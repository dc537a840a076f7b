"""Log lines as JSON: one object a line, the time in UTC, the connector and its position in each."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import orjson


class Place:
    """Holds what every line says of its process: the connector or job, and where it stands."""

    def __init__(self, **names: str) -> None:
        self._of: dict[str, Any] = {**names}

    def is_of(self, **names: str) -> None:
        """Note who the process is, once its file is read."""
        self._of = {**self._of, **names}

    def stands_at(self, position: Mapping[str, object] | str) -> None:
        """Note the newest committed position."""
        self._of = {**self._of, "position": position if isinstance(position, str) else dict(position)}

    def of(self) -> Mapping[str, Any]:
        return self._of


def line(at_s: float, level: str, message: str, place: Place, **more: Any) -> str:  # noqa: ANN401 - JSON values
    """Write one line, without its end."""
    at = datetime.fromtimestamp(at_s, UTC).isoformat(timespec="milliseconds")
    record = {"time": at, "level": level.lower(), "message": message, **place.of(), **more}
    try:
        return orjson.dumps(record).decode()
    except (TypeError, ValueError):  # a text that is not UTF-8, or a number of more than 64 bits
        return json.dumps(record, default=str)


class JsonFormatter(logging.Formatter):
    """Formats records of `logging` so."""

    def __init__(self, place: Place) -> None:
        super().__init__()
        self._place = place

    def format(self, record: logging.LogRecord) -> str:
        more = {"logger": record.name}
        if record.exc_info:
            more["exception"] = self.formatException(record.exc_info)
        return line(record.created, record.levelname, record.getMessage(), self._place, **more)
