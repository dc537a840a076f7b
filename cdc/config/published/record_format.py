"""What may be said of the form of records: `sink.format`, `sink.formats`, `sink.flat_metadata`, `sink.headers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdc.model.errors import ConfigError

FORMATS = ("envelope", "flat")
FLAT_METADATA = ("op", "position", "ts_ms", "deleted")
"""What a flat value may have besides the row, with __ before it."""
HEADERS = ("key_change",)
"""What records may tell in headers."""


def check_format(default: str, formats: Mapping[str, str], *, metadata: Sequence[str], headers: Sequence[str]) -> None:
    """Raise ConfigError for what is not known."""
    named = {"format": default, **{f"formats.{table}": of for table, of in formats.items()}}
    for key, of in named.items():
        if of not in FORMATS:
            raise ConfigError(f"{key}: “{of}” is not a format", hint=" or ".join(FORMATS))
    for key, items, known in (("flat_metadata", metadata, FLAT_METADATA), ("headers", headers, HEADERS)):
        for name in items:
            if name not in known:
                raise ConfigError(f"{key}: “{name}” is not known", hint=f"one of {', '.join(known)}")
    if len(set(metadata)) < len(metadata):
        raise ConfigError("flat_metadata names something twice", hint="once is enough")
    if metadata and "flat" not in named.values():
        raise ConfigError(
            "flat_metadata means nothing: no table is flat", hint="format: flat, or formats: {public.orders: flat}"
        )
