"""What connectors of a fleet capture, and what is asked of their topics: two tables a connector, written all the time.

A transaction moves an amount between two accounts and notes itself in the ledger; each account counts its updates. So
of every topic it can be told whether anything is missing, twice there, or was torn from its transaction.
"""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import psycopg2
import pymysql
from confluent_kafka import Consumer, TopicPartition

from sinks.topics.records.read_back import read_to_end

ACCOUNTS: Final = 6
_BALANCE: Final = 1_000


class Bank(ABC):
    """The tables of one connector, on one kind of database."""

    kind: str
    reference: str
    """The environment variable that a member's references name."""

    def __init__(self, name: str, url: str) -> None:
        self.name, self.url = name, url

    @property
    @abstractmethod
    def schema(self) -> str: ...

    @abstractmethod
    def connect(self) -> Any: ...

    def file(self) -> dict[str, Any]:
        """The connector's file, whose secrets and addresses are the member's."""
        tables = [f"{self.schema}.{table}" for table in self.tables]
        source: dict[str, Any] = {"type": self.kind, "url": f"${{{self.reference}}}", "tables": tables}
        options = {"message.timeout.ms": "6000", "socket.timeout.ms": "4000", "reconnect.backoff.max.ms": "1000"}
        sink = {"bootstrap_servers": "${env:SOAK_KAFKA}", "partitions": 1, "idle_position_s": 1.0, "options": options}
        return {"name": self.name, "source": source, "sink": sink}

    @property
    def tables(self) -> tuple[str, str]:
        return f"{self.name}_account", f"{self.name}_ledger"

    def prepare(self) -> None:
        account, ledger = self.tables
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {account} (id INT PRIMARY KEY, balance INT NOT NULL, n INT NOT NULL)")
            cursor.execute(f"CREATE TABLE {ledger} (id INT PRIMARY KEY)")
            for at in range(ACCOUNTS):
                cursor.execute(f"INSERT INTO {account} VALUES ({at}, {_BALANCE}, 0)")
            connection.commit()

    def transfer(self, connection: Any, number: int, choose: random.Random) -> None:
        account, ledger = self.tables
        giver, taker = choose.sample(range(ACCOUNTS), 2)
        amount = choose.randint(1, 50)
        with connection.cursor() as cursor:
            for at, change in sorted([(giver, -amount), (taker, amount)]):
                cursor.execute(f"UPDATE {account} SET balance = balance + {change}, n = n + 1 WHERE id = {at}")
            cursor.execute(f"INSERT INTO {ledger} VALUES ({number})")
        connection.commit()

    def contents(self) -> tuple[dict[int, tuple[int, int]], set[int]]:
        account, ledger = self.tables
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(f"SELECT id, balance, n FROM {account}")
            accounts = {at: (balance, n) for at, balance, n in cursor.fetchall()}
            cursor.execute(f"SELECT id FROM {ledger}")
            return accounts, {at for (at,) in cursor.fetchall()}


class PostgresBank(Bank):
    kind, reference, schema = "postgres", "SOAK_POSTGRES", "public"

    def connect(self) -> Any:
        return psycopg2.connect(self.url)


class MysqlBank(Bank):
    kind, reference = "mysql", "SOAK_MYSQL"

    @property
    def schema(self) -> str:
        return urlsplit(self.url).path.removeprefix("/")

    def connect(self) -> Any:
        at = urlsplit(self.url)
        login = {"user": unquote(at.username or ""), "password": unquote(at.password or "")}
        return pymysql.connect(**login, host=at.hostname, port=at.port, database=self.schema, ssl_disabled=True)


class Tellers(threading.Thread):
    """Writes to all banks in turn, until it is told to stop."""

    def __init__(self, banks: Sequence[Bank], *, seed: int, pause_s: float) -> None:
        super().__init__(name="tellers", daemon=True)
        self._banks, self._pause_s = banks, pause_s
        self._random = random.Random(seed)
        self._over = threading.Event()
        self.written = 0
        self.failure: BaseException | None = None

    def run(self) -> None:
        connections = {bank.name: bank.connect() for bank in self._banks}
        try:
            while not self._over.is_set():
                self.written += 1
                for bank in self._banks:
                    bank.transfer(connections[bank.name], self.written, self._random)
                    self._over.wait(self._pause_s / len(self._banks))
        except BaseException as exc:  # noqa: BLE001 - told at the end
            self.failure = exc
        finally:
            for connection in connections.values():
                connection.close()

    def stop(self) -> None:
        self._over.set()
        self.join(60)


@dataclass
class Laws:
    """What was broken of what a fleet must hold to."""

    lost: int = 0
    doubled: int = 0
    torn: int = 0
    events: int = 0
    said: list[str] = field(default_factory=list)

    def judge(self, kafka: str, bank: Bank) -> None:
        """Hold all committed events of a connector against its tables as they are now."""
        accounts, ledger = bank.contents()
        of_account, of_ledger = (list(_events(kafka, f"{bank.name}.{bank.schema}.{table}")) for table in bank.tables)
        self.events += len(of_account) + len(of_ledger)
        noted = Counter(event["after"]["id"] for event in of_ledger)
        self._count("lost", bank, ledger - noted.keys())
        self._count("doubled", bank, [number for number, times in noted.items() if times > 1])
        counted: dict[int, int] = {}
        folded: dict[int, tuple[int, int]] = {}
        for event in of_account:
            row = event["after"]
            before, now = counted.get(row["id"]), row["n"]
            if before is not None and now != before + 1:
                self._count("lost" if now > before else "doubled", bank, [(row["id"], before, now)])
            counted[row["id"]] = now
            folded[row["id"]] = (row["balance"], now)
        if folded != accounts:
            self._count("lost", bank, [sorted(set(accounts.items()) ^ set(folded.items()))])
        parts = Counter(event["transaction"]["id"] for event in (*of_account, *of_ledger) if event["op"] != "r")
        self._count("torn", bank, [transaction for transaction, events in parts.items() if events % 3])

    def _count(self, law: str, bank: Bank, found: Any) -> None:
        if found:
            setattr(self, law, getattr(self, law) + len(found))
            self.said.append(f"{law}: {bank.name}: {sorted(found)[:3]}")


def _events(kafka: str, topic: str) -> Iterator[dict[str, Any]]:
    for message in read_to_end(kafka, {}, topic, "read_committed"):
        value = message.value()
        if value is not None:
            yield json.loads(value)


class Commits(threading.Thread):
    """Notes when each connector has committed a position, by the clock of this machine."""

    def __init__(self, kafka: str, names: Sequence[str]) -> None:
        super().__init__(name="commits", daemon=True)
        self._kafka, self._names = kafka, names
        self._over = threading.Event()
        self.at_s: dict[str, list[float]] = {name: [] for name in names}

    def run(self) -> None:
        settings = {
            "bootstrap.servers": self._kafka,
            "group.id": "fleet-soak",
            "enable.auto.commit": "false",
            "isolation.level": "read_committed",
            "topic.metadata.refresh.interval.ms": "1000",
            "fetch.wait.max.ms": "50",
            "log_level": "0",
        }
        with closing(Consumer(settings)) as consumer:
            topics = {f"{name}.position-{name}": name for name in self._names}
            consumer.assign([TopicPartition(topic, 0, 0) for topic in topics])
            while not self._over.is_set():
                for message in consumer.consume(500, timeout=0.1):
                    if message.error() is None and (message.key() or b"").count(b"/") == 0:
                        self.at_s[topics[message.topic()]].append(message.timestamp()[1] / 1000)

    def last(self, name: str) -> float:
        return self.at_s[name][-1] if self.at_s[name] else 0.0

    def silence(self, name: str, since_s: float) -> float:
        """The longest time without a commit that ended after `since_s`."""
        stamps = sorted(self.at_s[name])
        gaps = [later - at for at, later in itertools.pairwise(stamps) if later > since_s]
        return max(gaps, default=time.time() - since_s)

    def stop(self) -> None:
        self._over.set()
        self.join(30)


def dropped(banks: Sequence[Bank]) -> None:
    """Let go of the slots of what has been captured; the servers may be other tests', too."""
    for bank in banks:
        if bank.kind == "postgres":
            with closing(bank.connect()) as connection, connection.cursor() as cursor, suppress(psycopg2.Error):
                cursor.execute(f"SELECT pg_drop_replication_slot('cdc_{bank.name}')")
                connection.commit()
