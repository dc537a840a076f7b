"""Makes what a deleted row has left in topics go: the order of the steps, and what is then known of each place.

1. The newest record of the key must be its tombstone: whatever else the topic has of it may then go, by the meaning of
   compaction. Without it the row is still there, or its delete has not come yet, and nothing is done.
2. All topics that keep the newest record of a key are compacted now (`sinks.erasure.compaction`): the table's, the
   connector's own, and those of views, whose rows have come from it. Also older keys of the row, which a key change
   left behind as tombstones, and what views had under other keys, lose their values so.
3. A log keeps every event until its retention has passed. It can be cut behind the last event of the key, which takes
   the older events of other rows of that partition with it: only if that was asked for.
4. Then each place is looked at again, also at records that are not committed.
"""

from __future__ import annotations

import time
from array import array
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import orjson
from confluent_kafka import Message

from cdc.capture.control.signals import parse
from cdc.config.config import ConnectorConfig
from cdc.encode.table_log import log_of
from cdc.formats.reading import MAGIC
from cdc.model.audit import DONE, Act, asked_by
from cdc.model.errors import OperatorError
from cdc.model.hints import of_table
from cdc.model.state import key_to_json
from cdc.rules.routes import Routes, without_table
from sinks.client.schema_registry import open_reading
from sinks.erasure.compaction import Compaction
from sinks.erasure.keys import Columns, WantedKey
from sinks.erasure.places import Place
from sinks.topics.names import log_topic, position_topic, signal_topic, table_of
from sinks.topics.records.audit_log import note
from sinks.topics.records.bulk import descriptions
from sinks.topics.records.read_back import Isolation, offset_bounds, read_partition, read_to_end
from sinks.topics.topics import Topics

LOOK_EVERY_S: Final = 3.0
NEEDED: Final = frozenset({"ALTER_CONFIGS", "DESCRIBE_CONFIGS", "READ", "WRITE"})
_TO_CUT: Final = {"DELETE"}
_FOREVER: Final = -1
_NO_KEY: Final = b"null"
_OTHER_KEYS: Final = "events under keys that the row had before are not among them: run this for each of those, too"
_SHARES: Final = 256

Ends = Mapping[int, int]
"""By partition, the first offset that is not looked at."""


@dataclass(frozen=True, slots=True)
class Found:
    """What a topic has of the key."""

    records: int = 0
    values: int = 0
    """Those of the records that are no tombstones."""
    last: Mapping[int, tuple[int, int]] | None = None
    """By partition, offset and time of its last record."""
    behind: Mapping[int, int] | None = None
    """By partition, the offset of the next record behind that one; of a partition that ends with it there is none."""
    deleted: bool = True
    """Whether the newest record is a tombstone; also where there is none."""
    unknown: int = 0
    """Records whose key could not be written: dead letters of rows that nobody can tell apart by their keys."""


def erase(
    config: ConnectorConfig, table: str, key: str, *, cut_logs: bool, within_s: float, say: Callable[[str], None]
) -> list[Place]:
    """Make everything of a deleted row go that can go; return what is known of each place.

    `say` is told what it waits for. Raises OperatorError before anything is changed where the row is still there, or
    this user may not alter the topics; ConfigError for a key that is none.
    """
    return _Erasure(config, table, WantedKey(key), say).run(cut_logs=cut_logs, within_s=within_s)


class _Erasure:
    def __init__(self, config: ConnectorConfig, table: str, key: WantedKey, say: Callable[[str], None]) -> None:
        self._config, self._sink, self._table, self._key, self._say = config, config.sink, table, key, say
        self._compaction = Compaction(config.sink, config.name)
        self._reading = open_reading(config.sink)
        self._routes = Routes.of_sink(config.sink)
        with Topics(self._sink.bootstrap_servers, self._sink.options) as topics:
            names = topics.names()
            self.topic = next((t for t in names if self._is_of_table(t)), "")
            if not self.topic:
                raise OperatorError(
                    f"table {table} has no topic of prefix {self._sink.prefix}",
                    hint="--table takes SCHEMA.TABLE as cdc status CONNECTOR.yaml lists them",
                )
            self.views = sorted(t for t in names if t.startswith(f"{self._sink.prefix}.view."))
            own = {signal_topic(self._sink.prefix, config.name), position_topic(self._sink.prefix, config.name)}
            self.own = sorted(own & names)
            logs = {log_of(self.topic), log_topic(self._sink.prefix, config.name, "dead-letter")}
            self.logs = sorted(logs & names)
            former = self._written_to() - {self.topic}
            self._former = sorted({*former, *map(log_of, former)} & names)
            self._has_messages = log_topic(self._sink.prefix, config.name, "message") in names
            existing = topics.existing([self.topic, *self.views, *self.own, *self.logs])
            self._allowed = {name: of.allowed for name, of in existing.items()}

    def _is_of_table(self, topic: str) -> bool:
        route = self._routes.of(self._table)
        if route is not None:
            return topic == f"{self._sink.prefix}.{route.to}"
        return topic.startswith(f"{self._sink.prefix}.") and table_of(topic) == self._table

    def run(self, *, cut_logs: bool, within_s: float) -> list[Place]:
        self._refuse(cut_logs=cut_logs)
        self._key.must_be_of(self._table, self._keys(), self._shown_by())
        before = self._found(self.topic)
        if not before.records:
            self._say(
                f"topic {self.topic} has no record of this key, not even of its delete: is it written as in "
                f"{self._shown_by()}?"
            )
        if not before.deleted:
            raise OperatorError(
                f"the newest event of this key in topic {self.topic} is a row: it is still in {self._table}, or its "
                "delete has not come yet",
                hint="DELETE the row at the source; cdc status CONNECTOR.yaml says up to when the source is in Kafka",
            )
        asked_ms = time.time_ns() // 1_000_000
        self._note("begun", asked_ms, cut_logs=cut_logs)
        were = {log: self._ends(log, "read_committed") for log in self.logs if cut_logs}  # before they are read
        in_logs = {log: self._found(log) for log in self.logs}
        cut = [log for log, found in in_logs.items() if found.records and cut_logs]
        compacted = [self.topic, *self.views, *self.own]
        with self._compaction.hurried(compacted=compacted, logs=cut):
            cuts = {log: self._cut(log, in_logs[log], were[log]) for log in cut}
            self._compaction.wait_until_old()
            ends = {topic: self._ends(topic) for topic in (*compacted, *cut)}
            self._compaction.close_segments({topic: list(of) for topic, of in ends.items()})
            left = self._wait({topic: ends[topic] for topic in compacted}, within_s)
        closed_ms = time.time_ns() // 1_000_000
        places = [
            self._compacted(topic, left=topic in left, closed_ms=closed_ms, within_s=within_s) for topic in compacted
        ]
        if not before.records and not left:
            places[0] = self._not_found(places[0])
        after = self._found(self.topic)
        if after.records > after.values:
            places.append(self._tombstone(closed_ms))
        places += self._tombstones_of_views(closed_ms)
        places += [
            self._cut_log(log, closed_ms, alone=all(ends[log][of] == at for of, at in cuts[log].items()))
            if log in cuts
            else self._log(log, in_logs[log], closed_ms)
            for log in self.logs
        ]
        places += self._elsewhere()
        self._note(DONE, asked_ms, cut_logs=cut_logs, places=places)
        return places

    def _note(self, outcome: str, asked_ms: int, *, cut_logs: bool, places: Sequence[Place] = ()) -> None:
        """Note in the audit that it was asked for, and how many places have gone; never the key."""
        counts = Counter[str](place.verdict for place in places)
        about = {"table": self._table, "cut_logs": cut_logs, **counts}
        act = Act(action="erase", by=asked_by(), asked_ms=asked_ms, about=about, outcome=outcome)
        note(self._sink, self._sink.prefix, self._config.name, act)

    def _refuse(self, *, cut_logs: bool) -> None:
        for topic, allowed in self._allowed.items():
            is_log = topic in self.logs
            needed = (_TO_CUT | NEEDED if cut_logs else {"READ"}) if is_log else NEEDED
            missing = sorted(needed - allowed)
            if allowed and missing:  # brokers without authorization say nothing, or all
                raise OperatorError(
                    f"topic {topic}: this user may not {', '.join(missing)}; nothing was changed",
                    hint="kafka-acls.sh --add for the user of sink.options, on the topics of the prefix",
                )

    def _keys(self) -> list[Columns]:
        """Return the columns of the table's key in each version of it, as the schema topic has them."""
        found: list[Columns] = []
        free = self._config.source.url.startswith("sqlite:")  # a type says what somebody has called it, no more
        for record in self._described():
            if record["topic"] == self.topic:
                columns = {of["name"]: {**of, "type": None} if free else of for of in record["columns"]}
                found.append({name: columns[name] for name in record["key"]})
        return found

    def _written_to(self) -> set[str]:
        """Return the topics that this connector has written the table's events to, one after the other."""
        return {str(record["topic"]) for record in self._described() if record["connector"] == self._config.name}

    def _described(self) -> list[dict[str, Any]]:
        """Return the table's descriptions in the schema topic."""
        records = map(orjson.loads, descriptions(self._sink))
        return [record for record in records if f"{record['schema']}.{record['table']}" == self._table]

    def _records(self, topic: str, ends: Ends | None = None) -> Iterator[Message]:
        servers, options = self._sink.bootstrap_servers, self._sink.options
        if ends is None:
            yield from read_to_end(servers, options, topic, "read_committed", open_too=False)
            return
        for partition, end in ends.items():
            for message in read_partition(servers, options, topic, partition, 0):
                if (message.offset() or 0) < end:
                    yield message

    def _found(self, topic: str) -> Found:
        """Read what a topic has of the key and is committed."""
        records = values = unknown = 0
        deleted, last, behind = True, dict[int, tuple[int, int]](), dict[int, int]()
        for message in self._records(topic):
            partition, offset = message.partition() or 0, message.offset() or 0
            unknown += message.key() == _NO_KEY and self._is_letter_of_table(message.value())
            if self._names(message.key()):
                records, values = records + 1, values + (message.value() is not None)
                deleted = message.value() is None
                last[partition] = (offset, message.timestamp()[1])
                behind.pop(partition, None)
            elif partition in last:
                behind.setdefault(partition, offset)
        return Found(records, values, last, behind, deleted, unknown)

    def _cut(self, log: str, found: Found, ends: Ends) -> dict[int, int]:
        """Delete all events up to the last one of the key; return where each partition begins then.

        A file goes when all of it lies before that, so a partition that ends with the key's event is cut at its end:
        the mark of the transaction is in the file, too. `ends` are those from before it was read: what has come since
        then lies behind them, and is left alone.
        """
        begins = dict[int, int]()
        for partition, (offset, _) in (found.last or {}).items():
            begins[partition] = (found.behind or {}).get(partition, max(ends[partition], offset + 1))
            self._compaction.cut(log, partition, begins[partition])
        return begins

    def _is_letter_of_table(self, value: object) -> bool:
        """Tell whether a dead letter is one of the table's rows."""
        try:
            letter = orjson.loads(value) if isinstance(value, bytes) else {}
            return f"{letter['schema']}.{letter['table']}" == self._table
        except (ValueError, KeyError, TypeError):
            return True  # nobody knows whose it is

    def _ends(self, topic: str, isolation: Isolation = "read_uncommitted") -> dict[int, int]:
        bounds = offset_bounds(self._sink.bootstrap_servers, self._sink.options, topic, isolation)
        return {partition: end for partition, (_, end) in bounds.items()}

    def _wait(self, ends: Mapping[str, Ends], within_s: float) -> set[str]:
        """Look until nothing is left before these ends; return the topics in which something is."""
        until = time.monotonic() + within_s
        left = set(ends)
        while True:
            left = {topic for topic in left if self._is_left(topic, ends[topic])}
            if not left or time.monotonic() > until:
                return left
            self._say(f"waiting for the broker to compact {', '.join(sorted(left))}")
            time.sleep(LOOK_EVERY_S)
            if slowed := self._compaction.slowed(left):
                self._compaction.close_segments({topic: list(ends[topic]) for topic in slowed})

    def _is_left(self, topic: str, ends: Ends) -> bool:
        """Tell whether a value of the key is there, or any record that a newer one of its key replaces."""
        for partition, end in ends.items():
            seen = [array("q") for _ in range(_SHARES)]  # eight bytes a key: topics are large
            for message in self._records(topic, {partition: end}):
                key = message.key()
                if topic == self.topic and message.value() is not None and self._names(key):
                    return True
                if topic == signal_topic(self._sink.prefix, self._config.name) and self._asks_for(message.value()):
                    return True
                number = hash(key)
                seen[number % _SHARES].append(number)
            if any(len(set(share)) < len(share) for share in seen):
                return True
        return False

    def _shown_by(self) -> str:
        return f"{of_table('cdc tail CONNECTOR.yaml', self._table)} --from-beginning"

    def _not_found(self, place: Place) -> Place:
        """Tell of a topic without the key: a row that is there under another spelling must not pass for erased."""
        alike = {m.key() for m in self._records(self.topic) if self._names(m.key(), self._key.is_like)}
        if alike:
            what = (
                f"it has no record of this key, and {len(alike)} that differ in case, spaces or digits of the same "
                f"value: run this with --key as {self._shown_by()} shows it; if the row was another, nothing is left "
                "of it here"
            )
            return Place(place.place, "kept", what)
        return replace(place, what=f"it had no record of this key; {place.what}")

    def _names(self, key: object, is_one: Callable[[bytes], bool] | None = None) -> bool:
        """Tell whether a record's key is the one. Raises OperatorError for a key that nobody can read any more."""
        is_one = is_one or self._key.is_key
        if not isinstance(key, bytes):
            return False
        json = self._reading.json(key)
        if json[:1] == MAGIC:
            raise OperatorError(
                f"topic {self.topic} has a key whose schema is not at the registry: it may be this one",
                hint="sink.registry in connector.yaml, as it was when the key was written",
            )
        if self._routes.names_source(self._table):
            json, table = without_table(json)
            return table == self._table and is_one(json)
        return is_one(json)

    def _asks_for(self, value: object) -> bool:
        """Tell whether a command that waits is about the key."""
        command = parse(value) if isinstance(value, bytes) else None
        return command is not None and any(self._key.is_texts(key_to_json(key)) for key in command.keys)

    def _compacted(self, topic: str, *, left: bool, closed_ms: int, within_s: float) -> Place:
        if left:
            return Place(
                f"topic {topic}",
                "kept",
                f"the broker has not compacted it within {within_s:g} s: log.cleaner.enable and the broker's log say "
                "why; then run this again",
            )
        delay = int(self._compaction.settings(topic).get("file.delete.delay.ms", "60000"))
        what = "no record has its values; the broker removes the old files a little later"
        return Place(f"topic {topic}", "will be gone", what, closed_ms + delay)

    def _tombstone(self, closed_ms: int) -> Place:
        kept = int(self._compaction.settings(self.topic).get("delete.retention.ms", "0"))
        what = "its key alone, without values, so that readers see the delete; run this again after that time"
        return Place(f"tombstone in topic {self.topic}", "kept", what, closed_ms + kept)

    def _tombstones_of_views(self, closed_ms: int) -> Iterator[Place]:
        """A view's key may be made of values of the row: its tombstone then has them."""
        for topic in self.views:
            if any(message.value() is None for message in self._records(topic)):
                kept = int(self._compaction.settings(topic).get("delete.retention.ms", "0"))
                what = (
                    "keys of rows that the view had, of this row's values where it makes its keys of such: they go "
                    "with a run of this after that time"
                )
                yield Place(f"tombstones in topic {topic}", "cannot be proved", what, closed_ms + kept)

    def _log(self, log: str, found: Found, closed_ms: int) -> Place:
        place = f"log {log}"
        if found.unknown:
            what = f"{found.unknown} of its records have no key that can be read, and hold whole rows: look at them"
            return Place(place, "kept", what)
        if not found.records:
            return Place(place, "gone", f"it has no event of the key; {_OTHER_KEYS}")
        settings = self._compaction.settings(log)
        kept = int(settings.get("retention.ms", "-1"))
        behind = f"{found.records} events of the key ({_OTHER_KEYS})"
        if kept == _FOREVER:
            return Place(place, "kept", f"{behind}, for ever; --cut-logs removes them with all that is before them")
        last_ms = max((at for _, at in (found.last or {}).values()), default=closed_ms)
        what = f"{behind}, until its retention has passed; --cut-logs removes them with all that is before them"
        return Place(place, "will be gone", what, last_ms + kept + int(settings.get("segment.ms", "0")))

    def _cut_log(self, log: str, closed_ms: int, *, alone: bool) -> Place:
        """Tell of a log that was cut; `alone`: no later event could be in one file with those of the key.

        Brokers remove whole files, and tell nobody which records are in one.
        """
        place, after, settings = f"log {log}", self._found(log), self._compaction.settings(log)
        if after.unknown or after.records:
            return self._log(log, after, closed_ms)
        delay = int(settings.get("file.delete.delay.ms", "60000")) + self._checked_every_ms()
        if alone:
            what = f"cut; the broker removes the files when it looks for old ones; {_OTHER_KEYS}"
            return Place(place, "will be gone", what, closed_ms + delay)
        what = f"cut: no reader gets it; its bytes may be in one file with later events of other rows; {_OTHER_KEYS}"
        kept = int(settings.get("retention.ms", "-1"))
        if kept == _FOREVER:
            return Place(place, "kept", f"{what}; they stay for as long as those do, which is for ever")
        return Place(place, "will be gone", what, closed_ms + kept + delay)

    def _checked_every_ms(self) -> int:
        with Topics(self._sink.bootstrap_servers, self._sink.options) as topics:
            return int(topics.broker().settings.get("log.retention.check.interval.ms", "300000"))

    def _elsewhere(self) -> Iterator[Place]:
        for topic in self._former:
            yield Place(
                f"topic {topic}",
                "kept",
                "the table's events were written to it before sink.route was changed, and nothing is removed from it: "
                "what it has of the key stays for as long as the topic does",
            )
        if self._config.source.outbox is not None or self._has_messages:
            yield Place("messages and the outbox", "cannot be proved", "what they say is the application's own words")
        if self.views:
            yield Place(
                "state of the jobs that compute views",
                "cannot be proved",
                "a state file keeps the space of deleted rows: stop the job, move its state folder away, start it, and "
                "the state is made again from the topics",
            )
        yield Place(
            "connector", "cannot be proved",
            "temporary files of a running one have no name and go when it stops",
        )  # fmt: skip
        yield Place("source", "cannot be proved", "its own log, replicas and backups")
