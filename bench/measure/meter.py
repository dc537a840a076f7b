"""Measures when events become visible in a topic, and what processes use meanwhile.

A record is visible if a read_committed consumer can read it: if it lies before the last stable offset of its partition.
That offset is polled, which costs less than reading; the records are read and counted afterwards.
"""

from __future__ import annotations

import logging
import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import Consumer, IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic, OffsetSpec  # type: ignore[attr-defined]

from cdc.dev.servers import launch
from cdc.model.errors import OperatorError

POLL_S: Final = 0.02
QUIET_S: Final = 2.0
"""A topic is complete when nothing came for so long after the expected number."""
_LOOK_S: Final = 1.0
"""The interval in which new children of a process are looked up."""
_LATEST: Final = OffsetSpec.latest()  # type: ignore[no-untyped-call]
_quiet: Final = logging.getLogger("bench.kafka")
_quiet.setLevel(logging.CRITICAL)  # messages about stopped servers are expected
_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PEAK: Final = re.compile(r"VmHWM:\s+(\d+) kB")


def timed(work: Callable[[], object]) -> float:
    """Return the seconds that `work` takes."""
    begun = time.monotonic()
    work()
    return time.monotonic() - begun


class Usage:
    """The CPU seconds of a process and its children, including children that have ended and were waited for."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._family: list[int] = []
        self._looked_s = 0.0

    def seconds(self, *, look: bool = False) -> float:
        """Return the CPU seconds; `look`: look up new children first."""
        now = time.monotonic()
        if look or now - self._looked_s > _LOOK_S:
            self._family, self._looked_s = launch.family(self._pid), now
        return sum(cpu_ticks(stat(pid)) for pid in self._family) / _TICKS

    def peak_mb(self) -> float:
        """Return the sum of the greatest resident sizes of the running processes."""
        return sum(peak_kb(pid) for pid in launch.family(self._pid)) / 1024


def stat(pid: int) -> str:
    """Read /proc/PID/stat; empty if the process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""


def cpu_ticks(text: str) -> int:
    """Return utime + stime + cutime + cstime of a /proc/PID/stat; the program's name in it may hold anything."""
    fields = text.rpartition(")")[2].split()
    return sum(map(int, fields[11:15]))


def peak_kb(pid: int) -> int:
    try:
        found = _PEAK.search(Path(f"/proc/{pid}/status").read_text())
    except OSError:
        return 0
    return int(found[1]) if found else 0


@dataclass(frozen=True, slots=True)
class Sample:
    """The visible offsets and the CPU at a point in time."""

    at_s: float
    visible: int
    cpu_s: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Counted:
    """The records of a topic between two points in time."""

    records: int
    keys: int
    value_bytes: int


class Topic:
    """A topic, which may not exist yet."""

    def __init__(self, bootstrap_servers: str, name: str, partitions: int) -> None:
        self._servers = bootstrap_servers
        self.name = name
        self._partitions = range(partitions)
        self._admin = AdminClient({"bootstrap.servers": bootstrap_servers}, logger=_quiet)

    def create(self) -> None:
        """Create the topic, compacted as ours are."""
        made = NewTopic(self.name, len(self._partitions), 1, config={"cleanup.policy": "compact"})
        self._admin.create_topics([made])[self.name].result(30)

    def ends(self) -> list[int]:
        """Return the last stable offset of each partition."""
        asked = {TopicPartition(self.name, p): _LATEST for p in self._partitions}
        found = self._admin.list_offsets(asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=10)
        ends = {}
        for partition, offset in found.items():
            try:
                ends[partition.partition] = offset.result(15).offset
            except KafkaException:  # no such topic yet
                ends[partition.partition] = 0
        return [ends[p] for p in self._partitions]

    def watch(
        self,
        begin: Sequence[int],
        expected: int,
        *,
        usage: Mapping[str, Usage],
        alive: Callable[[], bool],
        within_s: float,
    ) -> tuple[Sample, Sample]:
        """Return when something beyond `begin` was first visible, and when the last of `expected` records was.

        If everything became visible at once, the first is the begin of the watch. Offsets count control records too, so
        the end is reached when nothing has changed for a while.
        """
        began = first = last = Sample(time.monotonic(), 0, {name: of.seconds() for name, of in usage.items()})
        deadline = last.at_s + within_s
        while True:
            visible = sum(self.ends()) - sum(begin)
            now = time.monotonic()
            if visible != last.visible:
                new = not first.visible
                last = Sample(now, visible, {name: of.seconds(look=new) for name, of in usage.items()})
                first = last if new else first
            elif visible >= expected and now - last.at_s > QUIET_S:
                return first if first.visible < last.visible else began, last
            if now > deadline:
                raise OperatorError(f"{self.name}: {visible} of {expected} records after {within_s:.0f} s")
            if not alive():
                raise OperatorError(f"{self.name}: what writes to it has ended after {visible} of {expected} records")
            time.sleep(POLL_S)

    def count(self, begin: Sequence[int]) -> Counted:
        """Read and count the records behind `begin`."""
        left = {p: end for p, end in zip(self._partitions, self.ends(), strict=True) if end > begin[p]}
        settings = {
            "bootstrap.servers": self._servers,
            "group.id": "bench",
            "enable.auto.commit": "false",
            "isolation.level": "read_committed",
        }
        records, size, keys = 0, 0, set()
        with closing(Consumer(settings, logger=_quiet)) as consumer:
            assigned = [TopicPartition(self.name, p, begin[p]) for p in left]
            consumer.assign(assigned)
            heard_s = time.monotonic()
            while left:
                for message in consumer.consume(10_000, timeout=0.1):
                    if message.error() is not None:
                        raise KafkaException(message.error())
                    heard_s = time.monotonic()
                    records += 1
                    size += len(message.value() or b"")
                    keys.add(message.key())
                for at in consumer.position(assigned):
                    if at.offset >= left.get(at.partition, at.offset + 1):
                        del left[at.partition]
                if time.monotonic() - heard_s > 30:
                    raise OperatorError(f"{self.name} cannot be read to its end")
        return Counted(records, len(keys), size)
