"""Runs the peer: Flink SQL in a session cluster of its own, two JVMs on loopback, exactly once.

Nothing is tuned down: state is on the heap, changes are taken in mini-batches, a checkpoint is made each second. The
cluster is up before anything is measured. Its jars are in the wheel `apache-flink-libraries`, which `make bench-flink`
installs; connectors come by their Maven coordinates.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import time
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, Self

from cdc.dev import jars
from cdc.dev.java import console_logging, java
from cdc.dev.servers import launch
from cdc.dev.servers.process import Launch, Server, Settings
from cdc.model.errors import OperatorError

VERSION: Final = "2.3.0"
KAFKA: Final = "org.apache.flink:flink-sql-connector-kafka:5.0.0-2.2"
_GATEWAY: Final = f"org.apache.flink:flink-sql-gateway:{VERSION}"
"""What the SQL client needs besides, and the wheel has not."""
_OPENED: Final = (
    *("java.util", "java.lang", "java.net", "java.io", "java.nio", "sun.nio.ch", "java.lang.reflect", "java.text"),
    *("java.time", "java.util.concurrent", "java.util.concurrent.atomic", "java.util.concurrent.locks"),
)
_SIZES: Final = {
    "cpu.cores": "2.0",
    "memory.framework.heap.size": "128mb",
    "memory.task.heap.size": "1664mb",
    "memory.managed.size": "128mb",
    "memory.network.min": "128mb",
    "memory.network.max": "128mb",
    "memory.framework.off-heap.size": "128mb",
    "memory.task.off-heap.size": "64mb",
    "memory.jvm-metaspace.size": "256mb",
    "memory.jvm-overhead.min": "192mb",
    "memory.jvm-overhead.max": "192mb",
}
"""As Flink's own scripts divide 2.7 GB of a task manager that has most of its state on the heap."""
_CONFIG: Final = """\
jobmanager: {{rpc: {{address: 127.0.0.1, port: {rpc}}}, bind-host: 127.0.0.1}}
taskmanager: {{bind-host: 127.0.0.1, host: 127.0.0.1, numberOfTaskSlots: 8}}
rest: {{address: 127.0.0.1, bind-address: 127.0.0.1, port: {rest}}}
parallelism: {{default: 2}}
restart-strategy: {{type: fixed-delay, fixed-delay: {{attempts: 10, delay: 1 s}}}}
"""
SETTINGS: Final = {
    "execution.checkpointing.interval": "1s",
    "execution.checkpointing.mode": "EXACTLY_ONCE",
    "state.backend.type": "hashmap",
    "table.exec.mini-batch.enabled": "true",
    "table.exec.mini-batch.allow-latency": "500 ms",
    "table.exec.mini-batch.size": "5000",
    "table.local-time-zone": "UTC",
}
_direct: Final = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Cluster:
    """A job manager and a task manager; both end with the context."""

    def __init__(self, folder: Path, *connectors: str) -> None:
        home = _home()
        self._class_path = _class_path(sorted((home / "lib").glob("*.jar")), *map(_fetched, connectors))
        self._client = _class_path(sorted((home / "opt").glob("*.jar")), _fetched(_GATEWAY))
        self._folder = folder
        (folder / "conf").mkdir(parents=True)
        settings = Settings(folder)
        self._rest = settings.port("rest")
        (folder / "conf/config.yaml").write_text(_CONFIG.format(rpc=settings.port("rpc"), rest=self._rest))
        (folder / "log4j2.properties").write_text(console_logging("WARN"))
        self._env = (
            ("FLINK_CONF_DIR", str(folder / "conf")),
            ("FLINK_LIB_DIR", str(home / "lib")),
            ("FLINK_PLUGINS_DIR", str(home / "plugins")),
        )
        main, conf = "org.apache.flink.runtime", ("--configDir", str(folder / "conf"))
        sizes = [f"-Dtaskmanager.{name}={value}" for name, value in _SIZES.items()]
        self.servers = [
            self._server(
                "jobmanager", ("-Xmx448m",), (f"{main}.entrypoint.StandaloneSessionClusterEntrypoint", *conf), 0
            ),
            self._server(
                "taskmanager",
                ("-Xmx1792m", "-XX:MaxDirectMemorySize=320m", "-XX:MaxMetaspaceSize=256m"),
                (f"{main}.taskexecutor.TaskManagerRunner", *conf, *sizes),
                1,
            ),
        ]

    def _server(self, name: str, heap: Sequence[str], main: Sequence[str], workers: int) -> Server:
        argv = (*self._java(), *heap, "-cp", self._class_path, *main)

        def ready(_pid: int) -> bool:
            with suppress(OSError):
                return bool(self.ask("/overview")["taskmanagers"] >= workers)
            return False

        return Server(name, self._folder / name, lambda _folder: Launch(argv, ready=ready, url="-", env=self._env))

    def _java(self) -> list[str]:
        opened = [f"--add-opens=java.base/{of}=ALL-UNNAMED" for of in _OPENED]
        return [str(java()), *opened, f"-Dlog4j2.configurationFile={self._folder}/log4j2.properties"]

    def __enter__(self) -> Self:
        try:
            for server in self.servers:
                server.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for server in reversed(self.servers):
            server.kill()

    @property
    def pids(self) -> list[int]:
        return [pid for server in self.servers if server.pid for pid in launch.family(server.pid)]

    def ask(self, path: str) -> Any:  # noqa: ANN401 - JSON
        with _direct.open(f"http://127.0.0.1:{self._rest}{path}", timeout=10) as answer:
            return json.load(answer)

    def submit(self, tables: Sequence[str], inserts: Sequence[str], **settings: str) -> float:
        """Start a job that runs these INSERT statements together, and return since when it runs (`time.time`).

        Raises OperatorError.
        """
        wanted = {"execution.target": "remote", **SETTINGS, **settings}
        lines = [f"SET '{name}' = '{value}'" for name, value in wanted.items()]
        lines += tables
        lines += ["EXECUTE STATEMENT SET BEGIN " + "; ".join(inserts) + "; END"]
        file = self._folder / f"job-{time.time_ns()}.sql"
        file.write_text("".join(f"{line};\n" for line in lines))
        main = ("org.apache.flink.table.client.SqlClient", "embedded", "-f", str(file))
        command = [*self._java(), "-Xmx512m", "-cp", f"{self._class_path}:{self._client}", *main]
        before = {job["jid"] for job in self.ask("/jobs/overview")["jobs"]}
        said = subprocess.run(
            command, env={**os.environ, **dict(self._env)}, capture_output=True, text=True, check=False
        )
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            new = [job for job in self.ask("/jobs/overview")["jobs"] if job["jid"] not in before]
            if new and new[0]["state"] in ("RUNNING", "FINISHED"):
                return float(new[0]["start-time"]) / 1000
            if not new or new[0]["state"] == "FAILED":
                break
            time.sleep(0.1)
        raise OperatorError(
            f"Flink did not take {file}", hint=f"{said.stdout[-3000:]}{said.stderr[-3000:]}{self.failure()}"
        )

    def finished(self, within_s: float) -> None:
        """Wait until each job has read its bounded topics to their ends. Raises OperatorError."""
        deadline = time.monotonic() + within_s
        while any(job["state"] != "FINISHED" for job in self.ask("/jobs/overview")["jobs"]):
            if (why := self.failure()) is not None:
                raise OperatorError("a job of Flink has failed", hint=why)
            if time.monotonic() > deadline:
                raise OperatorError(f"a job of Flink goes on after {within_s:.0f} s")
            time.sleep(0.2)

    def failure(self) -> str | None:
        """Return why a job has failed; None: none has."""
        for job in self.ask("/jobs/overview")["jobs"]:
            if job["state"] == "FAILED":
                told = self.ask(f"/jobs/{job['jid']}/exceptions")
                return str(told.get("root-exception") or told["exceptionHistory"]["entries"])[:4000]
        return None


def _fetched(coordinates: str) -> tuple[Path, ...]:
    return jars.fetch(coordinates.split(":")[1], (coordinates,), transitive=False)


def _class_path(*of: Sequence[Path]) -> str:
    return ":".join(str(jar) for each in of for jar in each)


def _home() -> Path:
    found = importlib.util.find_spec("pyflink")
    if found is None or not found.submodule_search_locations:
        raise OperatorError("the wheel apache-flink-libraries is not installed", hint="make bench-flink")
    return Path(next(iter(found.submodule_search_locations)))
