"""What may be said of the form of records: `sink.format`, `formats`, `registry`, `flat_metadata`, `headers`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from cdc.model.errors import ConfigError

SHAPES: Final = ("envelope", "flat")
ENCODINGS: Final = ("json", "connect-json", "avro", "protobuf", "json-schema")
REGISTERED: Final = ("avro", "protobuf", "json-schema")
"""Encodings whose schemas are at a registry."""
PRECISE: Final = ("avro", "protobuf")
"""Encodings that have decimals."""
FLAT_METADATA = ("op", "position", "ts_ms", "deleted")
"""What a flat value may have besides the row, with __ before it."""
HEADERS = ("key_change", "cloudevents")
"""What records may tell in headers."""
SUBJECTS: Final = ("topic", "record", "topic-record")
DECIMALS: Final = ("precise", "string")


@dataclass(frozen=True, slots=True)
class RecordFormat:
    """The format of a table's records: the shape of values, and how keys and values are encoded."""

    shape: str = "envelope"
    encoding: str = "json"

    @classmethod
    def parsed(cls, text: str) -> RecordFormat | None:
        """Read a shape, an encoding, or one of each; None for anything else."""
        words = text.split()
        shapes = [word for word in words if word in SHAPES]
        encodings = [word for word in words if word in ENCODINGS]
        if not words or len(shapes) > 1 or len(encodings) > 1 or len(shapes) + len(encodings) < len(words):
            return None
        return cls(*(shapes or ["envelope"]), *(encodings or ["json"]))


@dataclass(frozen=True, slots=True, kw_only=True)
class RegistryConfig:
    """The schema registry, and how it is used."""

    url: str
    subjects: str = "topic"
    """Confluent's strategies of subjects' names: TopicName, RecordName, TopicRecordName."""
    decimals: str = "precise"
    """Whether numbers of a declared precision are decimals of Avro and Protobuf, or their digits as text."""
    timeout_s: float = 10.0
    """How long an answer may take."""
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Properties of confluent-kafka's client by its names (basic.auth.user.info, ssl.ca.location, …)."""

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")) or "@" in self.url:
            raise ConfigError(
                "url is not that of a registry", hint="url: http://127.0.0.1:8081; who logs in is said in options: "
                "basic.auth.user.info",
            )  # fmt: skip
        for key, found, known in (("subjects", self.subjects, SUBJECTS), ("decimals", self.decimals, DECIMALS)):
            if found not in known:
                raise ConfigError(f"{key}: “{found}” is not known", hint=f"one of {', '.join(known)}")
        if not LEAST_TIMEOUT_S <= self.timeout_s <= MOST_TIMEOUT_S:
            raise ConfigError(
                f"timeout_s: {self.timeout_s:g} is out of range", hint=f"{LEAST_TIMEOUT_S:g} to {MOST_TIMEOUT_S:g}"
            )


LEAST_TIMEOUT_S: Final = 0.1
MOST_TIMEOUT_S: Final = 60.0
"""The loop waits for the answer: longer, and the source would end the session."""


def check_format(
    default: str,
    formats: Mapping[str, str],
    *,
    metadata: Sequence[str],
    headers: Sequence[str],
    registry: RegistryConfig | None,
) -> None:
    """Raise ConfigError for what is not known."""
    named = {"format": default, **{f"formats.{table}": of for table, of in formats.items()}}
    parsed = {key: RecordFormat.parsed(text) for key, text in named.items()}
    for key, of in parsed.items():
        if of is None:
            raise ConfigError(
                f"{key}: “{named[key]}” is not a format",
                hint=f"{' or '.join(SHAPES)}, an encoding ({', '.join(ENCODINGS)}), or both: flat avro",
            )
        if of.encoding in REGISTERED and registry is None:
            raise ConfigError(
                f"{key}: {of.encoding} needs a schema registry",
                hint="registry: {url: http://127.0.0.1:8081}; cdc dev up registry starts one",
            )
    for key, items, known in (("flat_metadata", metadata, FLAT_METADATA), ("headers", headers, HEADERS)):
        for name in items:
            if name not in known:
                raise ConfigError(f"{key}: “{name}” is not known", hint=f"one of {', '.join(known)}")
    if len(set(metadata)) < len(metadata):
        raise ConfigError("flat_metadata names something twice", hint="once is enough")
    found = [of for of in parsed.values() if of is not None]
    if metadata and all(of.shape != "flat" for of in found):
        raise ConfigError(
            "flat_metadata means nothing: no table is flat", hint="format: flat, or formats: {public.orders: flat}"
        )
    if registry is not None and all(of.encoding not in REGISTERED for of in found):
        raise ConfigError("registry means nothing: no table's format needs one", hint="format: avro, or take it out")
