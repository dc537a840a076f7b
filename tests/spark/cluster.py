"""A standalone Spark cluster on loopback, each part a process that can be killed, and a job submitted to it."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pyspark

from cdc.dev.java import java
from cdc.dev.servers.launch import family
from cdc.dev.servers.process import Launch, Server, free_port

QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
EXECUTORS = {
    "spark.executor.memory": "512m",
    "spark.executor.extraJavaOptions": QUICK,
    "spark.sql.shuffle.partitions": "2",
}


class Cluster:
    """Made by `cluster`."""

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        self._web, port = free_port(), free_port()
        self.url = f"spark://127.0.0.1:{port}"
        about = ("--host", "127.0.0.1", "--port", str(port), "--webui-port", str(self._web))
        self.master = self._server("master", "master.Master", about, answers_for=0)
        self.workers = [self._worker(number) for number in range(workers)]

    @property
    def settings(self) -> dict[str, str]:
        """Those of a job that starts Spark itself."""
        return {"spark.master": self.url, "spark.driver.host": "127.0.0.1", **EXECUTORS}

    def _worker(self, number: int) -> Server:
        name = f"worker{number}"
        about = ("--host", "127.0.0.1", "--webui-port", "0", "--cores", "1", "--memory", "600m")
        about += ("--work-dir", str(self._folder / name / "work"), self.url)
        return self._server(name, "worker.Worker", about, answers_for=number + 1)

    def _server(self, name: str, kind: str, about: tuple[str, ...], *, answers_for: int) -> Server:
        """Ready when the master answers and has so many workers that are alive."""
        home = Path(pyspark.__file__).parent
        argv = (
            str(java()),
            "-Xmx128m",
            *QUICK.split(),
            "-cp",
            f"{home}/jars/*",
            f"org.apache.spark.deploy.{kind}",
            *about,
        )
        env = (("SPARK_HOME", str(home)), ("SPARK_SCALA_VERSION", "2.13"), ("SPARK_LOCAL_DIRS", str(self._folder)))

        def ready(_pid: int) -> bool:
            return self.alive() >= answers_for

        return Server(name, self._folder / name, lambda _folder: Launch(argv, ready=ready, url="-", env=env))

    def alive(self) -> int:
        """How many workers the master has; less than none while it does not answer."""
        with (
            contextlib.suppress(OSError, ValueError),  # its first page may be another than this one
            urllib.request.urlopen(f"http://127.0.0.1:{self._web}/json/") as answer,
        ):
            return sum(worker["state"] == "ALIVE" for worker in json.load(answer)["workers"])
        return -1


def executors(worker: Server) -> list[int]:
    """Pids of the executors that a worker has started."""
    return [pid for pid in family(worker.pid or 0) if b"CoarseGrainedExecutorBackend" in _command(pid)]


@contextlib.contextmanager
def cluster(folder: Path, workers: int) -> Iterator[Cluster]:
    """All parts up; all of them killed on exit."""
    made = Cluster(folder, workers)
    servers = (made.master, *made.workers)
    try:
        for server in servers:
            server.start()
        yield made
    finally:
        for server in reversed(servers):
            server.kill()


class Submitted:
    """A job that spark-submit has started; what it prints is kept."""

    def __init__(self, command: Sequence[str], folder: Path, environment: Mapping[str, str]) -> None:
        self._log = folder / "submitted.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=log, stderr=log, start_new_session=True
            )

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def said(self) -> str:
        return self._log.read_text()

    def end(self, within_s: float = 180) -> int:
        """Ask the Python that spark-submit's JVM has started to end, and give spark-submit's exit code."""
        python, *_ = (pid for pid in family(self._process.pid)[1:] if b"job.py\0" in _command(pid))
        os.kill(python, 15)
        return self._process.wait(within_s)

    def kill(self) -> None:
        for pid in family(self._process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        self._process.wait()


def _command(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
