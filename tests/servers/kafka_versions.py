"""Brokers of other versions than `cdc dev` starts: `CDC_TEST_KAFKA_VERSION=3.6.2 pytest …`; `make test-all` does it.

Before 3.0 there were no transactions without ZooKeeper, so a broker of 2.8 comes with one.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Final

from cdc.dev import jars
from cdc.dev.java import java
from cdc.dev.servers import kafka
from cdc.dev.servers.process import Launch, Settings

VERSIONS: Final = ("2.8.2", "3.6.2", "3.9.1")
"""The oldest that we claim, one of each protocol's age since, and the last before 4.0."""

_LOGGING: Final = (
    "org.apache.logging.log4j:log4j-slf4j-impl:2.24.3",
    "org.apache.logging.log4j:log4j-1.2-api:2.24.3",
)
_ZOOKEEPER: Final = (
    "tickTime=2000\ndataDir={data}\nclientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\n"
)
_IN_ZOOKEEPER: Final = """\
broker.id=1
zookeeper.connect={zookeeper}
zookeeper.session.timeout.ms=3000
listeners=PLAINTEXT://127.0.0.1:{port}
log.dirs={data}
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
log.cleaner.dedupe.buffer.size=33554432
"""


def asked() -> str | None:
    """The version that tests shall have; None: the one of `cdc dev`."""
    return os.environ.get("CDC_TEST_KAFKA_VERSION") or None


def broker(zookeeper: Callable[[], str]) -> Callable[[Path], Launch]:
    """Return what prepares a broker of the version asked for; `zookeeper` starts one and says where it is."""
    version = asked()
    if version is None:
        return kafka.prepare
    coordinates = _coordinates(version)
    if not version.startswith("2."):
        return partial(kafka.prepare, coordinates=coordinates)
    return partial(_with_zookeeper, coordinates, zookeeper())


def zookeeper(folder: Path) -> Launch:
    """Prepare the ZooKeeper that comes with that version."""
    port, properties = Settings(folder).port("port"), folder / "zoo.cfg"
    properties.write_text(_ZOOKEEPER.format(data=folder / "data", port=port))
    main = ("org.apache.zookeeper.server.ZooKeeperServerMain", str(properties))
    argv = _java(folder, _coordinates(asked() or ""), *main)
    return Launch(argv=argv, ready=lambda _pid: _listens(port), url=f"127.0.0.1:{port}")


def _coordinates(version: str) -> tuple[str, ...]:
    return f"org.apache.kafka:kafka_2.13:{version}", *_LOGGING


def _java(folder: Path, coordinates: tuple[str, ...], *main: str) -> tuple[str, ...]:
    logging = folder / "log4j2.properties"
    logging.write_text("rootLogger.level=ERROR\n")
    options = ("-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Dlog4j2.configurationFile={logging}")
    return (str(java()), *options, "-cp", jars.class_path(f"kafka-{asked()}", coordinates), *main)


def _with_zookeeper(coordinates: tuple[str, ...], zookeeper: str, folder: Path) -> Launch:
    port, properties = Settings(folder).port("port"), folder / "server.properties"
    properties.write_text(_IN_ZOOKEEPER.format(zookeeper=zookeeper, port=port, data=folder / "data"))
    argv = _java(folder, coordinates, "kafka.Kafka", str(properties))
    return Launch(argv=argv, ready=lambda _pid: kafka.is_ready(port), url=f"127.0.0.1:{port}")


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
