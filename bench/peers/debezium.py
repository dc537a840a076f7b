"""Runs the peer: Debezium in a Kafka Connect worker of its own, on loopback, with settings for throughput.

Nothing is tuned down: batches, queues and fetches are larger than its defaults, it polls without pauses, its JSON has
no schemas, and the producer fills large compressed batches. Delivery is at least once, its default.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self
from urllib.parse import unquote, urlsplit

from cdc.dev import jars
from cdc.dev.java import console_logging, java
from cdc.dev.servers.process import Launch, Server, Settings
from cdc.model.errors import OperatorError

VERSION: Final = "3.5.0.Final"
KAFKA: Final = "4.1.0"
CONNECT: Final = (
    f"org.apache.kafka:connect-runtime:{KAFKA}",
    f"org.apache.kafka:connect-json:{KAFKA}",
    "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
)
JVM: Final = ("-server", "-Xms1g", "-Xmx2g", "-XX:+UseParallelGC")
"""On two cores it needs less CPU and sends more than with G1, the choice of Kafka's own scripts."""

_WORKER: Final = {
    "key.converter": "org.apache.kafka.connect.json.JsonConverter",
    "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    "key.converter.schemas.enable": "false",
    "value.converter.schemas.enable": "false",
    "offset.flush.interval.ms": "10000",
    "plugin.discovery": "service_load",
    "producer.compression.type": "lz4",
    "producer.batch.size": "524288",
    "producer.linger.ms": "20",
    "producer.buffer.memory": "134217728",
}
_CONNECTOR: Final = {
    "tasks.max": "1",
    "max.batch.size": "8192",
    "max.queue.size": "32768",
    "poll.interval.ms": "10",
    "snapshot.fetch.size": "10000",
    "snapshot.max.threads": "2",
    "decimal.handling.mode": "string",  # digits, as ours
    "tombstones.on.delete": "true",
    "topic.creation.default.replication.factor": "1",
    "topic.creation.default.cleanup.policy": "compact",
}
_STANDS_WITHIN_S: Final = 60.0
_direct: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def connector(kind: str, name: str, url: str, table: str, *, folder: Path, partitions: int) -> dict[str, str]:
    """Return the configuration of a connector of `table`; its topics begin with its name."""
    at = urlsplit(url)
    return {
        **_CONNECTOR,
        **(_mysql(name, folder) if kind == "mysql" else _postgres(name, at.path.lstrip("/"))),
        "name": name,
        "topic.prefix": name,
        "topic.creation.default.partitions": str(partitions),
        "table.include.list": table,
        "database.hostname": at.hostname or "",
        "database.port": str(at.port),
        "database.user": at.username or "",
        "database.password": unquote(at.password or ""),
    }


def _artifact(jar: Path) -> str:
    """Name what a jar is of, whatever its version."""
    return jar.stem.rpartition("-")[0]


def _mysql(name: str, folder: Path) -> dict[str, str]:
    return {
        "connector.class": "io.debezium.connector.mysql.MySqlConnector",
        "database.server.id": str(500_000_000 + sum(name.encode())),
        "database.ssl.mode": "disabled",
        "driver.allowPublicKeyRetrieval": "true",
        "schema.history.internal": "io.debezium.storage.file.history.FileSchemaHistory",
        "schema.history.internal.file.filename": str(folder / f"{name}.history"),
        "schema.history.internal.store.only.captured.tables.ddl": "true",
        "include.schema.changes": "false",
    }


def _postgres(name: str, database: str) -> dict[str, str]:
    return {
        "connector.class": "io.debezium.connector.postgresql.PostgresConnector",
        "plugin.name": "pgoutput",
        "database.dbname": database,
        "database.sslmode": "disable",
        "slot.name": name.replace("-", "_"),
        "publication.name": name.replace("-", "_"),
        "publication.autocreate.mode": "filtered",
    }


class Worker:
    """A JVM that runs connectors; it is stopped on exit of the context."""

    def __init__(self, folder: Path, kind: str, kafka: str, *, jvm: tuple[str, ...] = JVM) -> None:
        self._folder, self._kind, self._kafka, self._jvm = folder, kind, kafka, jvm
        self._files: list[Path] = []
        self.server = Server("connect", folder, self._prepare)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self, *connectors: Mapping[str, str]) -> None:
        """Start a new process with these connectors; it answers when this returns, they may not run yet."""
        self._folder.mkdir(parents=True, exist_ok=True)
        self._files = []
        for config in connectors:
            self._files.append(_written(self._folder / f"{config['name']}.properties", config))
        self.server.start()

    def stop(self) -> None:
        self.server.stop(timeout_s=30)

    def _prepare(self, folder: Path) -> Launch:
        plugins = folder / "plugins"
        plugins.mkdir(exist_ok=True)
        plugin = jars.fetch(f"debezium-{self._kind}", (f"io.debezium:debezium-connector-{self._kind}:{VERSION}",))[
            0
        ].parent
        ours = plugins / self._kind
        ours.mkdir(exist_ok=True)
        provided = {_artifact(jar) for jar in jars.fetch("connect", CONNECT)}
        for jar in plugin.glob("*.jar"):
            if _artifact(jar) not in provided:  # a class that is there twice is two classes
                with suppress(FileExistsError):
                    (ours / jar.name).symlink_to(jar)
        port = Settings(folder).port("port")
        logging = folder / "log4j2.properties"
        logging.write_text(console_logging("WARN"))
        worker = {
            **_WORKER,
            "bootstrap.servers": self._kafka,
            "listeners": f"http://127.0.0.1:{port}",
            "rest.advertised.host.name": "127.0.0.1",
            "plugin.path": str(plugins),
            "offset.storage.file.filename": str(folder / "offsets"),
        }
        return Launch(
            argv=(
                *(str(java()), *self._jvm, f"-Dlog4j2.configurationFile={logging}"),
                *("-cp", jars.class_path("connect", CONNECT), "org.apache.kafka.connect.cli.ConnectStandalone"),
                *map(str, (_written(folder / "worker.properties", worker), *self._files)),
            ),
            ready=lambda _pid: self._answers(),
            url=f"http://127.0.0.1:{port}",
        )

    def _answers(self) -> bool:
        with suppress(OSError, urllib.error.URLError):
            self._ask("GET", "/")
            return True
        return False

    def add(self, config: Mapping[str, str]) -> None:
        """Add a connector to the running worker."""
        self._ask("PUT", f"/connectors/{config['name']}/config", dict(config))

    def remove(self, name: str) -> None:
        self._ask("DELETE", f"/connectors/{name}")

    def halt(self, name: str) -> None:
        """End its tasks after they have committed what they wrote; the JVM stays warm."""
        self._ask("PUT", f"/connectors/{name}/stop")
        self._await(name, "STOPPED", tasks=0)

    def resume(self, name: str) -> None:
        self._ask("PUT", f"/connectors/{name}/resume")

    def running(self, name: str) -> None:
        """Wait until its task runs."""
        self._await(name, "RUNNING", tasks=1)

    def failure(self, name: str) -> str | None:
        """Return the error that ended its task, and what caused it."""
        with suppress(OSError, urllib.error.URLError):
            tasks = self._ask("GET", f"/connectors/{name}/status")["tasks"]
            for task in tasks:
                if task["state"] == "FAILED":
                    lines = str(task.get("trace")).splitlines()
                    return "\n".join(lines[:1] + [line for line in lines if line.startswith("Caused by")])
        return None

    def _await(self, name: str, state: str, *, tasks: int) -> None:
        deadline = time.monotonic() + _STANDS_WITHIN_S
        found: dict[str, Any] = {}
        while time.monotonic() < deadline:
            with suppress(urllib.error.HTTPError):
                found = self._ask("GET", f"/connectors/{name}/status")
                there = [task["state"] for task in found["tasks"]]
                if found["connector"]["state"] == state and there == ["RUNNING"] * tasks:
                    return
            time.sleep(0.1)
        raise OperatorError(f"Debezium's connector {name} is not {state}: {json.dumps(found)[:2000]}")

    def _ask(self, method: str, path: str, body: object = None) -> Any:  # noqa: ANN401 - JSON
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self.server.url + path, data, {"Content-Type": "application/json"})
        request.method = method
        with _direct.open(request, timeout=60) as answer:
            text = answer.read()
        return json.loads(text) if text else None


def _written(file: Path, properties: Mapping[str, str]) -> Path:
    file.touch(mode=0o600)
    file.write_text("".join(f"{name}={value}\n" for name, value in properties.items()))
    return file
