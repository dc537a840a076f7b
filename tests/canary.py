"""A password that must be found nowhere: the secret of every connector under test, and where it is looked for.

What connectors print is kept in a folder of the session; server logs and command lines are looked at; the topics are
read at the end. The environment of a connector holds the password by design, and is not looked at.

`files_with` looks for a person's datum in the bytes of all files of a folder.
"""

from __future__ import annotations

import base64
import io
import itertools
import os
import threading
import time
import uuid
from collections.abc import Iterable, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

import fastavro
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from pyarrow import parquet

CANARY: Final = f"canary-{uuid.uuid4().hex}"
_SAMPLED_EVERY_S: Final = 0.25
_READ_AT_ONCE: Final = 2_000
"""Partitions: each topic by itself would take a minute for every thousand."""
_SILENT_S: Final = 60.0


def files_with(folder: Path, secret: str) -> set[Path]:
    """Every file below `folder` that has it: as it is, in Base64, or in a Parquet or Avro file."""
    return {file for file in folder.rglob("*") if holds(file, secret)}


def holds(file: Path, secret: str) -> bool:
    try:
        found = file.read_bytes() if file.is_file() else b""
    except FileNotFoundError:  # its server has just removed it
        return False
    if any(form in found for form in _forms(secret.encode())):
        return True
    return secret in _decoded(file.suffix, found)


def _decoded(suffix: str, found: bytes) -> str:
    """What compressed files of a lake hold."""
    if suffix == ".parquet":
        return str(parquet.ParquetFile(pa.BufferReader(found)).read().to_pylist())
    return str([*fastavro.reader(io.BytesIO(found))]) if suffix == ".avro" else ""


def _forms(secret: bytes) -> tuple[bytes, ...]:
    """The bytes themselves, and what Base64 makes of them behind any number of others."""
    in_base64 = (base64.b64encode(bytes(before) + secret)[4 if before else 0 : -4] for before in range(3))
    return (secret, *in_base64)


class Watch:
    """Looks for `secret` in what is written, in what runs, and in what is published."""

    def __init__(self, secret: str) -> None:
        self._secret, self._text = secret.encode(), secret
        self._folder: Path | None = None
        self._numbers = itertools.count(1)
        self._prefixes: set[tuple[str, str]] = set()
        self._seen: set[str] = set()
        self._over = threading.Event()
        self._thread: threading.Thread | None = None

    def tee(self, what: str, text: str | None) -> None:
        """Keep what a process printed; before `start` nothing is kept."""
        if text and self._folder is not None:
            (self._folder / f"{next(self._numbers)}-{what}.txt").write_text(text)

    def publishes(self, kafka: str, prefix: str) -> None:
        """A connector writes topics of this prefix."""
        self._prefixes.add((kafka, prefix))

    def start(self, folder: Path) -> None:
        """Keep what is printed in `folder`, and sample the command lines of all processes from now on."""
        self._folder = folder
        self._thread = threading.Thread(target=self._sample, name="canary", daemon=True)
        self._thread.start()

    def _sample(self) -> None:
        while not self._over.wait(_SAMPLED_EVERY_S):
            with suppress(OSError):  # a test may have taken all files from its process for a moment
                self._seen |= self.in_command_lines()

    def stop(self) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join()

    def found(self, logs: Iterable[Path]) -> list[str]:
        """Every place where the secret was seen: what was printed, `logs`, command lines, topics."""
        printed = self._folder.iterdir() if self._folder is not None else ()
        return sorted(self._seen | self.in_files((*printed, *logs)) | self.in_topics())

    def in_files(self, files: Iterable[Path]) -> set[str]:
        return {f"file {file}" for file in files if holds(file, self._text)}

    def in_command_lines(self) -> set[str]:
        """What runs now. With few system calls each: a session looks many thousand times."""
        seen, ours = set[str](), str(os.getpid())
        with os.scandir("/proc") as entries:
            processes = [entry.name for entry in entries if entry.name.isdecimal() and entry.name != ours]
        for process in processes:
            line = _command_line(process)
            if self._secret in line:
                seen.add(f"command line of {line.partition(bytes(1))[0].decode(errors='replace')}")
        return seen

    def in_topics(self) -> set[str]:
        """Keys, values and headers, those of aborted transactions too; of brokers that still answer."""
        seen = set[str]()
        for kafka in {broker for broker, _ in self._prefixes}:
            ours = {prefix for broker, prefix in self._prefixes if broker == kafka}
            try:
                topics = AdminClient({"bootstrap.servers": kafka, "log_level": 0}).list_topics(timeout=5).topics
            except KafkaException:
                continue  # a broker of one test, gone with it: its log files are looked at
            mine = sorted(name for name in topics if name.partition(".")[0] in ours)
            places = [(name, partition) for name in mine for partition in topics[name].partitions]
            for at in range(0, len(places), _READ_AT_ONCE):
                seen |= self._in_partitions(kafka, places[at : at + _READ_AT_ONCE])
        return seen

    def _in_partitions(self, kafka: str, places: Sequence[tuple[str, int]]) -> set[str]:
        seen, unread = set[str](), len(places)
        consumer = Consumer(
            {
                "bootstrap.servers": kafka,
                "group.id": "canary",
                "isolation.level": "read_uncommitted",
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": 10,
                "log_level": 0,
            }
        )
        deadline = time.monotonic() + _SILENT_S
        with closing(consumer):
            consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in places])
            while unread:
                messages = consumer.consume(10_000, timeout=0.1)
                if messages:
                    deadline = time.monotonic() + _SILENT_S
                assert time.monotonic() < deadline, f"{unread} partitions cannot be read to their end"
                for message in messages:
                    error = message.error()
                    if error is not None:
                        assert error.code() == KafkaError._PARTITION_EOF, error
                        unread -= 1
                        continue
                    texts = (message.key(), message.value(), repr(message.headers() or "").encode())
                    if any(self._secret in text for text in texts if isinstance(text, bytes)):
                        seen.add(f"topic {message.topic()}")
        return seen


def _command_line(process: str) -> bytes:
    """Words that end with zeros; none of a process that has ended meanwhile."""
    read = bytearray()
    try:
        file = os.open(f"/proc/{process}/cmdline", os.O_RDONLY)
        try:
            while part := os.read(file, 65_536):
                read += part
        finally:
            os.close(file)
    except OSError:
        pass
    return bytes(read)


WATCH: Final = Watch(CANARY)
"""The session's."""
