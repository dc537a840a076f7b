"""An entry is a connector of a fleet: its file as it was added, and its place. Pure, but for reading a file.

The record's key is ``connector/NAME``, its value JSON: ``version``, ``place``, ``added_ms``, ``yaml`` and, once a
restart was asked for, ``restarted_ms``, by which it is another version of the entry. What is compared between entries
is read from the file each time, so a record that no `cdc fleet add` wrote is judged by the same rules.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import orjson
import yaml

from cdc.config.config import ConnectorConfig, load_connector, parse_connector
from cdc.config.yaml.references import ELSEWHERE, expand
from cdc.fleet.clash import Held, clashes, held_by
from cdc.fleet.secrets import literal_secrets
from cdc.model.errors import CdcError, ConfigError

CONNECTOR: Final = "connector/"
STATUS: Final = "status/"
_VERSION: Final = 1
_MOST_PLACE: Final = 100_000
_REFERENCE: Final = re.compile(r"\$?\$\{[^}]*\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A connector that members may run."""

    name: str
    prefix: str
    place: int
    added_ms: int
    yaml: str = field(repr=False)
    restarted_ms: int = 0
    """When a restart was asked for last."""
    listen: str | None = None
    """The address of its metrics."""
    held: Held = field(default_factory=Held)
    """What it holds elsewhere, by which entries are compared."""

    @property
    def digest(self) -> str:
        """Tell one version of the entry from another."""
        asked = f"{self.restarted_ms}\n" if self.restarted_ms else ""
        return hashlib.sha256((asked + self.yaml).encode()).hexdigest()[:16]

    def moved(self, *, place: int, added_ms: int) -> Entry:
        """Return the same at another place."""
        return replace(self, place=place, added_ms=added_ms)

    def restarted(self, at_ms: int) -> Entry:
        """Return the same, whose connector is ended and started again."""
        return replace(self, restarted_ms=at_ms)

    def to_bytes(self) -> bytes:
        found = {"version": _VERSION, "place": self.place, "added_ms": self.added_ms, "yaml": self.yaml}
        return orjson.dumps(found | ({"restarted_ms": self.restarted_ms} if self.restarted_ms else {}))


@dataclass(frozen=True, slots=True)
class Refused:
    """Says why an entry of the topic is run by nobody."""

    message: str
    hint: str | None
    place: int | None = None


@dataclass(frozen=True, slots=True)
class Entries:
    """Holds what the topic says: the connectors that may run, and those that may not."""

    good: Mapping[str, Entry]
    refused: Mapping[str, Refused]

    def places(self) -> set[int]:
        """Return the places that are taken."""
        found = {entry.place for entry in self.good.values()}
        return found | {one.place for one in self.refused.values() if one.place is not None}


def entry_of(file: Path, *, place: int, added_ms: int) -> Entry:
    """Make an entry of a connector's file. Raises ConfigError for all that is wrong with it, also for a secret in it.

    Comments are left out, which may hold anything. References stay: they are resolved by the member that runs it.
    """
    load_connector(file, references=_unresolved)
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{file}: cannot be read") from exc
    return _entry(text, str(file), place=place, added_ms=added_ms)


@functools.lru_cache(maxsize=50_000)
def _entry(text: str, where: str, *, place: int, added_ms: int) -> Entry:
    config = _parsed(text, where)
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    secrets = literal_secrets(node)
    if secrets:
        raise ConfigError(
            f"{where}: {', '.join(secrets)} holds a secret that is written out",
            hint="a fleet's topic takes references alone: ${NAME} or ${file:/path}, which each member resolves",
        )
    for at, value in (("name", _text(node, "name")), ("sink.topic_prefix", _text(node, "sink", "topic_prefix"))):
        if value is not None and "${" in value:
            raise ConfigError(f"{where}: {at} holds a reference", hint="write it out: a fleet compares it")
    return Entry(
        name=config.name,
        prefix=config.sink.prefix,
        place=place,
        added_ms=added_ms,
        yaml=yaml.serialize(node, Dumper=yaml.SafeDumper, allow_unicode=True),
        listen=config.metrics.listen,
        held=held_by(config, _text(node, "source", "url") or ""),
    )


def _parsed(text: str, where: str) -> ConnectorConfig:
    return parse_connector(text, Path(where), references=_unresolved)


def _unresolved(value: str) -> str:
    """Stand in for references that this machine need not have; those it has, and defaults, are taken."""

    def replace(match: re.Match[str]) -> str:
        try:
            return expand(match.group())
        except ConfigError as exc:
            if "is not a reference" in exc.message:
                raise
            return ELSEWHERE

    return _REFERENCE.sub(replace, value)


def _text(node: yaml.Node | None, *keys: str) -> str | None:
    for key in keys:
        pairs = node.value if isinstance(node, yaml.MappingNode) else []
        node = next((value for name, value in pairs if name.value in (key, key.replace("_", "."))), None)
    return str(node.value) if isinstance(node, yaml.ScalarNode) else None


def read_entries(records: Mapping[str, bytes]) -> Entries:
    """Judge records, by their names, each by itself and then beside the others: who was first stays."""
    good: dict[str, Entry] = {}
    refused: dict[str, Refused] = {}
    for name, value in records.items():
        try:
            good[name] = _read(name, value)
        except CdcError as exc:
            refused[name] = Refused(exc.message, exc.hint, _place(value))
    kept: list[Entry] = []
    for entry in sorted(good.values(), key=lambda one: (one.added_ms, one.name)):
        clash = next(clashes(entry, kept), None)
        if clash is None:
            kept.append(entry)
        else:
            refused[entry.name] = Refused(clash.message, clash.hint, entry.place)
    return Entries({entry.name: entry for entry in kept}, refused)


def _read(name: str, value: bytes) -> Entry:
    where = f"entry {name}"
    try:
        found = orjson.loads(value)
    except ValueError:
        found = None
    if not isinstance(found, dict) or found.get("version") != _VERSION:
        raise ConfigError(f"{where} is no record of this release", hint="cdc fleet add --replace CONNECTOR.yaml")
    place, text, added_ms = found.get("place"), found.get("yaml"), found.get("added_ms")
    restarted_ms = found.get("restarted_ms", 0)
    if not (
        (isinstance(place, int) and 0 <= place < _MOST_PLACE and isinstance(text, str))
        and isinstance(added_ms, int)
        and isinstance(restarted_ms, int)
    ):
        raise ConfigError(f"{where} is damaged", hint="cdc fleet add --replace CONNECTOR.yaml")
    try:
        entry = _entry(text, where, place=place, added_ms=added_ms)
    except RecursionError:
        raise ConfigError(f"{where}: lists or keys are nested too deeply to be read") from None
    if entry.name != name:
        raise ConfigError(f"{where} is the file of connector {entry.name}", hint="cdc fleet add CONNECTOR.yaml")
    return entry.restarted(restarted_ms)


def _place(value: bytes) -> int | None:
    try:
        place = orjson.loads(value)["place"]
    except (ValueError, KeyError, TypeError):
        return None
    return place if isinstance(place, int) and 0 <= place < _MOST_PLACE else None


def free_places(taken: Iterable[int], count: int) -> list[int]:
    """Return the lowest places that nobody has: as many partitions as places share the work out evenly."""
    there, found, at = set(taken), list[int](), 0
    while len(found) < count:
        if at not in there:
            found.append(at)
        at += 1
    return found
