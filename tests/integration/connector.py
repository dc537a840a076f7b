"""A connector under test: its file, its process, and what a reader of its topics sees."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, cast

from cdc.model.errors import RetryableError
from sinks.topics.names import table_topic
from sinks.topics.records.read_back import read_to_end
from tests.canary import WATCH
from tests.integration import in_process
from tests.integration.capture_role import CaptureRole
from tests.integration.mysql_user import MysqlUser
from tests.integration.nudges import nudged


@dataclass(frozen=True)
class Record:
    topic: str
    partition: int
    offset: int
    raw_key: bytes
    raw_value: bytes | None

    @cached_property
    def key(self) -> dict[str, Any]:
        return cast("dict[str, Any]", json.loads(self.raw_key))

    @cached_property
    def value(self) -> dict[str, Any] | None:
        return json.loads(self.raw_value) if self.raw_value is not None else None


class Connector:
    """`cdc run` on a file of its own, as a process.

    `url` is the database owner's; the connector itself logs in with a role that may do the least that is enough, unless
    `as_owner` says otherwise.
    """

    def __init__(
        self,
        folder: Path,
        name: str,
        url: str,
        kafka: str,
        tables: list[str],
        *,
        as_owner: bool = False,
        **more: Any,
    ) -> None:
        self.name, self.kafka = name, kafka
        self._as_owner = as_owner
        self.killed = False
        self.file = folder / f"{name}.yaml"
        config = {
            "name": name,
            "source": {
                "type": "mysql" if url.startswith("mysql:") else "postgres",
                "url": "${TEST_DATABASE_URL}",
                "tables": tables,
                **more.pop("source", {}),
            },
            "sink": {"type": "kafka", "bootstrap_servers": kafka, "partitions": 3, **more.pop("sink", {})},
            **more,
        }
        self.file.write_text(json.dumps(config))  # JSON is YAML
        WATCH.publishes(kafka, config["sink"].get("topic_prefix", name))
        self.moved(url)

    def moved(self, url: str) -> None:
        """The same file, its database now at this address of the owner's."""
        self.owner_url = url
        kind = MysqlUser if url.startswith("mysql:") else CaptureRole
        self._role = None if self._as_owner else kind(url)
        login = self._role.url if self._role else url
        if url.startswith("mysql:"):  # each connection would load the authorities, and ask none
            login += "?ssl_mode=disabled"
        self.environment = {**os.environ, "TEST_DATABASE_URL": login}

    def put_right(self) -> None:
        """What `start` and `cdc` do before a run: let the owner grant and publish."""
        self.killed = False
        if self._role is not None:
            self._role.put_right(self.file, self.environment)

    def start(self, *flags: str) -> subprocess.Popen[str]:
        self.put_right()
        return subprocess.Popen(
            [sys.executable, "-m", "cdc", "run", str(self.file), *flags],
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def cdc(self, *arguments: str, timeout_s: float = 150) -> subprocess.CompletedProcess[str]:
        """Any command, the file's path in place of FILE."""
        words = [str(self.file) if a == "FILE" else a for a in arguments]
        if arguments[0] == "run":
            self.put_right()
        done = subprocess.run(
            [sys.executable, "-m", "cdc", *words],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        WATCH.tee(arguments[0], done.stdout + done.stderr)
        return done

    def here(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Any command as `cdc` runs it, in this process: where what it does is the point, not that it is a process."""
        words = [str(self.file) if a == "FILE" else a for a in arguments]
        if arguments[0] == "run":
            assert "--until-caught-up" in arguments, "nobody could stop it"
            self.put_right()
        done = in_process.cdc(words, self.environment)
        WATCH.tee(arguments[0], done.stdout + done.stderr)
        return done

    def close_the_gap(self) -> str:
        """Do what the hint of a gap says; give stderr."""
        asked = self.here("snapshot", "start", "FILE", "--after-gap")
        assert asked.returncode == 0, asked.stderr
        return self.catch_up()

    def catch_up(self, *, process: bool = False) -> str:
        """Run until all that is committed now is in Kafka; give stderr. `process`: in one of its own."""
        if process:
            done = self.cdc("run", "FILE", "--until-caught-up")
        else:
            with nudged(self.owner_url):
                done = self.here("run", "FILE", "--until-caught-up")
        assert done.returncode == 0, done.stderr
        return done.stderr

    def records(self, table: str) -> list[Record]:
        """All committed records of a table's topic, in order within each partition."""
        schema, _, name = table.partition(".")
        return self._records(table_topic(self.name, schema, name))

    def records_of(self, name: str) -> list[Record]:
        """All committed records of a topic that is no table's: ``schema``, ``message``, …"""
        return self._records(f"{self.name}.{name}")

    def descriptions(self) -> list[dict[str, Any]]:
        """What describes the tables: the newest record of each version."""
        newest = {record.raw_key: record.value for record in self.records_of("schema")}
        return [value for value in newest.values() if value is not None]

    def _records(self, topic: str) -> list[Record]:
        try:
            messages = list(read_to_end(self.kafka, {}, topic, "read_committed"))
        except RetryableError:
            if not self.killed:  # one that ended by itself leaves no transaction open
                raise
            messages = list(read_to_end(self.kafka, {}, topic, "read_committed", open_too=False))
        return [Record(topic, m.partition() or 0, m.offset() or 0, m.key() or b"", m.value()) for m in messages]

    def events(self, table: str) -> list[dict[str, Any]]:
        """Values in the connector's order; tombstones left out."""
        values = [r.value for r in self.records(table) if r.value is not None]
        return sorted(values, key=lambda value: value["source"]["position"])

    def fold(self, table: str) -> dict[bytes, dict[str, Any]]:
        """What a reader of the compacted topic ends with: the last record of each key, tombstones applied."""
        last = {r.raw_key: r.value for r in self.records(table)}
        return {key: value["after"] for key, value in last.items() if value is not None}
