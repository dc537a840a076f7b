"""PostgreSQL and Kafka of the soak's own, the connector's ways to them through proxies, everybody else's direct."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

import psycopg2

from cdc.dev import kafka, postgres
from cdc.dev.process import Server
from tests.faults.proxy import Proxy


class Servers:
    """As a context manager it starts them and stops them."""

    def __init__(self, folder: Path, *, major: int) -> None:
        self.kafka_proxy, self.postgres_proxy = Proxy(kafka=True), Proxy(kafka=False)
        self._folder = folder
        self.kafka = Server("kafka", folder / "kafka", partial(kafka.prepare, advertised_port=self.kafka_proxy.port))
        self.postgres = Server(f"postgres{major}", folder / f"postgres{major}", partial(postgres.prepare, major=major))

    def __enter__(self) -> Self:
        try:
            self.postgres.start()
            self.kafka.start()
        except BaseException:
            self.__exit__()
            raise
        self.kafka_proxy.lead_to(kafka.proxied_port(self._folder / "kafka"))
        self.postgres_proxy.lead_to(urlsplit(self.postgres.url).port or 0)
        return self

    def __exit__(self, *_: object) -> None:
        for proxy in (self.kafka_proxy, self.postgres_proxy):
            proxy.close()
        for server in (self.kafka, self.postgres):
            server.resume()
            server.stop(timeout_s=5)

    @property
    def url(self) -> str:
        """The database, direct."""
        return self.postgres.url

    @property
    def proxied_url(self) -> str:
        parts = urlsplit(self.postgres.url)
        user, _, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}@127.0.0.1:{self.postgres_proxy.port}").geturl()

    @property
    def proxied_kafka(self) -> str:
        return f"127.0.0.1:{self.kafka_proxy.port}"

    def postgres_dies(self) -> None:
        """An immediate shutdown, as `pg_ctl stop -m immediate`: no checkpoint, recovery at the start."""
        pid = self.postgres.pid
        if pid is None:
            raise RuntimeError("PostgreSQL does not run")
        os.kill(pid, signal.SIGQUIT)
        deadline = time.monotonic() + 30
        while self.postgres.running:
            if time.monotonic() > deadline:
                self.postgres.kill()
            time.sleep(0.02)

    def sql(self, statement: str) -> list[tuple[object, ...]]:
        """Run it on a connection of its own."""
        connection = psycopg2.connect(self.url, connect_timeout=10)
        connection.autocommit = True
        try:
            with connection.cursor() as cursor:
                cursor.execute(statement)
                return cursor.fetchall() if cursor.description else []
        finally:
            connection.close()
