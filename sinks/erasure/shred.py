"""Erases the key of a subject: what was encrypted under it is unreadable then, wherever it is kept.

1. The connector erases the key itself, for it alone writes to the key topic and must not use the key any more: a
   command asks it to, which it carries out when it has read all that the log had then. One that does not run does so
   after its next start.
2. The key topic is compacted now (`sinks.erasure.compaction`), and the signal topic, whose command names the subject.
3. The key topic is read again, also what is not committed, until no record of the key is left.

The rest, tables, logs, dead letters and all that was made of them, stays as it is: only its key is gone.
"""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import chain
from typing import Any, Final
from uuid import uuid4

import orjson

from cdc.capture.control.signals import Command
from cdc.config.config import ConnectorConfig
from cdc.config.published.encryption import EncryptRule
from cdc.encode.table_log import log_of
from cdc.model.audit import DONE, Act, asked_by
from cdc.model.errors import ConfigError, OperatorError
from cdc.model.suggestion import not_described
from cdc.rules.capture_rules import CaptureRules
from cdc.rules.encrypted_rows import subject_of
from cdc.rules.encryption import identifier_of
from cdc.rules.keyring import Keyring
from sinks.erasure.compaction import Compaction
from sinks.erasure.erase import LOOK_EVERY_S, NEEDED
from sinks.erasure.keys import values_of
from sinks.erasure.places import Place
from sinks.topics.names import log_topic, signal_topic
from sinks.topics.records.audit_log import note
from sinks.topics.records.bulk import descriptions
from sinks.topics.records.keys import key_topic, read_keys
from sinks.topics.records.read_back import offset_bounds, read_partition
from sinks.topics.records.signals import Commands, send_command
from sinks.topics.topics import Topics

_ANSWER_EVERY_S: Final = 0.3


@dataclass(frozen=True, slots=True)
class _Named:
    """Tables whose rows can be about the subject, as the schema topic has them."""

    tables: Mapping[str, Sequence[str]]
    """Their topics, also those that they were written to before."""
    plainly: frozenset[str]
    """Those of which a version was published whose values were not encrypted."""
    names: frozenset[str]
    """How else the same subjects were called, when the rules were others."""
    otherwise: frozenset[str]
    """Tables of which a version was published under keys of subjects that were said by other columns."""
    apart: frozenset[str]
    """Other tables that name subjects by their own names: one of them may be this one, before a RENAME."""


def shred(
    config: ConnectorConfig, table: str, text: str, *, within_s: float, say: Callable[[str], None]
) -> list[Place]:
    """Erase the key of whom `text` names; return what is known of each place.

    `say` is told what it waits for. Raises ConfigError for a table without `encrypt` and for a subject that is none;
    OperatorError, before anything is changed, where this user may not do it, or another master key is given.
    """
    return _Shredding(config, table, text, say).run(within_s)


class _Shredding:
    def __init__(self, config: ConnectorConfig, table: str, text: str, say: Callable[[str], None]) -> None:
        self._config, self._sink, self._table, self._say = config, config.sink, table, say
        rules = CaptureRules.of_source(config.source)
        described = [orjson.loads(value) for value in descriptions(self._sink)]
        ours = [record for record in described if record["connector"] == config.name]
        rule = _rule(rules, table) or _described_rule(ours, table)
        if rule is None or rules.keys is None:
            raise ConfigError(
                f"--subject: source.columns has no encrypt for {table}",
                hint="--table SCHEMA.TABLE of one that has; the rule that the values were encrypted by must be there",
            )
        self._keys: Keyring = rules.keys
        self._name, self._columns = rule.subject or table, rule.columns
        self._topics = [key_topic(self._sink, config.name), signal_topic(self._sink.prefix, config.name)]
        with Topics(self._sink.bootstrap_servers, self._sink.options) as topics:
            self._there = topics.names()
            existing = topics.existing([name for name in self._topics if name in self._there])
            self._allowed = {name: of.allowed for name, of in existing.items()}
        if self._topics[0] not in self._there:
            raise OperatorError(
                f"topic {self._topics[0]} is not there: connector {config.name} has not encrypted anything, or the "
                "topic was deleted, and all keys with it",
                hint="cdc run CONNECTOR.yaml, with the file as it is: it makes the topic, and encrypts under new keys",
            )
        self._named = named(rules, ours, self._name)
        by = [rule.by] if rule.by is not None else self._key_of(described)
        values = values_of(text, table, by)
        self._subject = subject_of(self._keys, self._name, values)
        before = {subject_of(self._keys, name, values) for name in self._named.names}
        apart = {
            subject_of(self._keys, name, values): name
            for name in self._named.apart.difference(config.source.tables)  # which are called so now
        }
        there = self._records({self._subject, *before, *apart})
        self._subjects = [self._subject, *sorted(before & there.keys())]
        self._apart = sorted(name for subject, name in apart.items() if there.get(subject, [None])[-1] is not None)

    def _key_of(self, described: Sequence[Mapping[str, Any]]) -> list[str]:
        keys = [list(record["key"]) for record in described if f"{record['schema']}.{record['table']}" == self._table]
        if not keys:
            known = {f"{record['schema']}.{record['table']}" for record in described}
            raise not_described(self._config.name, [self._table], known)
        return keys[-1]

    def run(self, within_s: float) -> list[Place]:
        for topic, allowed in self._allowed.items():
            missing = sorted(NEEDED - allowed)
            if allowed and missing:  # brokers without authorization say nothing, or all
                raise OperatorError(
                    f"topic {topic}: this user may not {', '.join(missing)}; nothing was changed",
                    hint="kafka-acls.sh --add for the user of sink.options, on the topics of the prefix",
                )
        self._keys.begin(read_keys(self._sink, self._config.name))  # raises if another master key is given
        self._keys.close()
        until = time.monotonic() + within_s
        if not any(any(records) for records in self._records(set(self._subjects)).values()):
            self._say(f"nobody has a key of this subject: is it written as in the rows of {self._table}?")
        if not self._ask(until):
            return [
                Place(
                    f"topic {self._topics[0]}", "kept",
                    f"connector {self._config.name} has not erased the key within {within_s:g} s: does it run? is "
                    "it paused? What was asked stays asked until it goes on (cdc run CONNECTOR.yaml, or "
                    "cdc resume CONNECTOR.yaml): then run this again",
                )
            ]  # fmt: skip
        erased, since = self._parted()
        if not erased and not since and not self._records(set(self._subjects)):
            return [
                Place(
                    f"topic {self._topics[0]}", "cannot be proved",
                    f"nobody has, or had, a key of this subject{self._for_how_long()}: nothing was erased",
                ),
                *self._other_names(),
            ]  # fmt: skip
        return self._compacted({identifier_of(record) for record in erased}, until, within_s)

    def _for_how_long(self) -> str:
        """Say since when an erased key would have left its tombstone."""
        kept = Compaction(self._sink, self._config.name).settings(self._topics[0]).get("delete.retention.ms", "0")
        return f", as far as its topic remembers ({int(kept) / 3_600_000:g} hours)"

    def _ask(self, until: float) -> bool:
        """Have the connector erase the key; whether it has."""
        config, asked_ms, sent = self._sink, time.time_ns() // 1_000_000, set[bytes]()
        for subject in self._subjects:
            identifier = uuid4().hex
            command = Command(shred=subject, by=asked_by(), asked_ms=asked_ms).to_bytes(identifier)
            send_command(config, self._config.name, identifier.encode(), command)
            sent.add(identifier.encode())
        with closing(Commands(config.bootstrap_servers, config.options, self._topics[1])) as commands:
            told = False
            while any(key in sent for key, _ in commands.waiting()):
                if time.monotonic() > until:
                    return False
                if not told:
                    self._say(
                        f"waiting for connector {self._config.name} to erase the key, which it does while it runs: "
                        "cdc status CONNECTOR.yaml"
                    )
                    told = True
                time.sleep(_ANSWER_EVERY_S)
        return True

    def _compacted(self, erased: set[bytes], until: float, within_s: float) -> list[Place]:
        compaction = Compaction(self._sink, self._config.name)
        with compaction.hurried(compacted=self._topics, logs=()):
            compaction.wait_until_old()
            compaction.close_segments({topic: list(self._partitions(topic)) for topic in self._topics})
            while left := self._left() & erased:
                if time.monotonic() > until:
                    break
                self._say(f"waiting for the broker to compact {self._topics[0]}")
                time.sleep(LOOK_EVERY_S)
            asked = self._asked()
            while asked and time.monotonic() < until:
                self._say(f"waiting for the broker to compact {self._topics[1]}")
                time.sleep(LOOK_EVERY_S)
                asked = self._asked()
        closed_ms = time.time_ns() // 1_000_000
        places = []
        for topic, is_left in zip(self._topics, (left, asked), strict=True):
            if is_left:
                what = f"the broker has not compacted it within {within_s:g} s: log.cleaner.enable and its log say why"
                places.append(Place(f"topic {topic}", "kept", f"{what}; then run this again"))
                continue
            gone_ms = closed_ms + int(compaction.settings(topic).get("file.delete.delay.ms", "60000"))
            what = "no record has it; the broker removes the old files a little later"
            if topic == self._topics[0]:
                what = f"no record has the key, {'which was there' if erased else 'which was erased before'}; {what}"
            places.append(Place(f"topic {topic}", "will be gone", what, gone_ms))
        if self._parted()[1]:
            places.append(
                Place(
                    f"new key in topic {self._topics[0]}", "kept",
                    "rows of the subject have been written since, under a new key: delete them at the source, then run "
                    "this again",
                )
            )  # fmt: skip
        places += self._elsewhere(places[0], had=bool(erased))
        counts = Counter[str](place.verdict for place in places)
        about = {"table": self._table, "subject": True, **counts}
        note(self._sink, self._sink.prefix, self._config.name,
             Act(action="erase", by=asked_by(), asked_ms=closed_ms, about=about, outcome=DONE))  # fmt: skip
        return places

    def _elsewhere(self, of_key: Place, *, had: bool) -> Iterator[Place]:
        columns = ", ".join(self._columns)
        for table, topics in sorted(self._named.tables.items()):
            written = [place for topic in topics for place in (f"topic {topic}", f"log {log_of(topic)}")]
            what = f"what it has of encrypted columns ({columns} in {self._table}) cannot be read without the key"
            if not had:
                what = f"it had nothing that was encrypted for the subject ({columns} in {self._table})"
            for place in (of for of in written if of.partition(" ")[2] in self._there):
                yield Place(place, of_key.verdict, f"{what}; other columns stay as they are", of_key.by_ms)
            if table in self._named.plainly:
                yield Place(
                    f"older events of {table}", "cannot be proved",
                    "they were written before encrypt named all of its columns, with the values as they were: "
                    "cdc erase --key makes those of a deleted row go",
                )  # fmt: skip
            if table in self._named.otherwise:
                yield Place(
                    f"older keys of {table}", "cannot be proved",
                    "its values were encrypted under keys of whom other columns named: run this also with a copy of "
                    "the file in which encrypt says by and subject as it did then",
                )  # fmt: skip
        yield from self._other_names()
        letters = log_topic(self._sink.prefix, self._config.name, "dead-letter")
        if letters in self._there:
            yield Place(f"log {letters}", of_key.verdict, "encrypted, as in the tables' topics", of_key.by_ms)
        yield Place("connector", "cannot be proved", "it has forgotten the key; its memory is the system's to clean")
        yield Place("readers", "cannot be proved", "what they have decrypted, and copies of the key topic or backups")
        yield Place("source", "cannot be proved", "its rows, log, replicas and backups: delete the rows there, too")

    def _other_names(self) -> Iterator[Place]:
        for table in self._apart:
            yield Place(
                f"keys of {table}", "cannot be proved",
                f"a subject with the same value has a key there: if {self._table} was called {table} before, run this "
                f"also with --table {shlex.quote(table)}",
            )  # fmt: skip

    def _parted(self) -> tuple[list[bytes], list[bytes]]:
        """Return the subject's keys that were erased, and those that have come since, as far as the topic has them."""
        erased, since = list[bytes](), list[bytes]()
        for records in self._records(set(self._subjects)).values():
            at = max((number for number, record in enumerate(records) if record is None), default=-1)
            erased += (record for record in records[: at + 1] if record is not None)
            since += (record for record in records[at + 1 :] if record is not None)
        return erased, since

    def _left(self) -> set[bytes]:
        """Return the names of the subject's keys that the key topic has."""
        records = chain.from_iterable(self._records(set(self._subjects)).values())
        return {identifier_of(record) for record in records if record is not None}

    def _records(self, subjects: Collection[bytes]) -> dict[bytes, list[bytes | None]]:
        """Return the records of these subjects' keys that the key topic has, in order, committed or not."""
        found: dict[bytes, list[bytes | None]] = {}
        for partition in self._partitions(self._topics[0]):
            for message in self._read(self._topics[0], partition):
                if (key := message.key()) in subjects:
                    found.setdefault(key, []).append(message.value())
        return found

    def _asked(self) -> bool:
        """Whether the signal topic has a command about the subject."""
        found = (m.value() for at in self._partitions(self._topics[1]) for m in self._read(self._topics[1], at))
        return any(subject in value for value in found if value is not None for subject in self._subjects)

    def _read(self, topic: str, partition: int) -> Iterator[Any]:
        return read_partition(self._sink.bootstrap_servers, self._sink.options, topic, partition, 0)

    def _partitions(self, topic: str) -> Sequence[int]:
        bounds = offset_bounds(self._sink.bootstrap_servers, self._sink.options, topic, "read_uncommitted")
        return sorted(bounds)


def named(rules: CaptureRules, described: Sequence[Mapping[str, Any]], subject: str) -> _Named:
    """Find the tables whose rows have subjects of this name, in records of the schema topic.

    A rule may have been another one: keys that were made for the same values by another name are of the same subjects.
    Of a table without a rule, as it was called before a RENAME, the records say how it was encrypted.
    """
    tables: dict[str, list[str]] = {}
    plainly, names, otherwise, apart = set[str](), set[str](), set[str](), set[str]()
    keys = {f"{record['schema']}.{record['table']}": list(record["key"]) for record in described}
    for record in described:
        table = f"{record['schema']}.{record['table']}"
        rule = _rule(rules, table) or _described_rule(described, table)
        if rule is None:
            continue
        if (rule.subject or table) != subject:
            if rule.subject in (None, table):
                apart.add(table)
            continue
        topics = tables.setdefault(table, [])
        topics += [record["topic"]] if record["topic"] not in topics else []
        if any(c["name"] in rule.columns and not c.get("encrypted") for c in record["columns"]):
            plainly.add(table)
        if not any(c.get("encrypted") for c in record["columns"]):
            continue
        of = record.get("subject", {})
        if of.get("by") != ([rule.by] if rule.by is not None else keys[table]):
            otherwise.add(table)
        elif of["name"] != subject:
            names.add(of["name"])
    return _Named(tables, frozenset(plainly), frozenset(names), frozenset(otherwise), frozenset(apart - names))


def _described_rule(described: Sequence[Mapping[str, Any]], table: str) -> EncryptRule | None:
    """Return how a table was encrypted that has no rule any more, by its newest record; None: it was not."""
    for record in reversed(described):
        if f"{record['schema']}.{record['table']}" == table and "subject" in record:
            of = record["subject"]
            by = of["by"][0] if of["by"] != list(record["key"]) else None
            columns = tuple(column["name"] for column in record["columns"] if column.get("encrypted"))
            return EncryptRule(columns=columns, by=by, subject=of["name"])
    return None


def _rule(rules: CaptureRules, table: str) -> EncryptRule | None:
    """Return how a table is encrypted."""
    of = rules.of(table)
    return None if of is None or of.columns is None else of.columns.encrypt
