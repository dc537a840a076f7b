"""Apache Kafka for development and tests: one node that is broker and controller (KRaft), on loopback.

Set for a short start rather than for load: few partitions in the internal topics, the quick compiler only, small
buffers. After a SIGKILL the controller refuses the broker until its old session has run out, hence the short session.
"""

from __future__ import annotations

import base64
import shutil
import socket
import struct
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from cdc import jars
from cdc.dev.process import Launch, Settings, run_once
from cdc.java import java

if TYPE_CHECKING:
    from pathlib import Path

_JAVA_OPTIONS = ("-Xmx512m", "-Xms128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
controller.listener.names=CONTROLLER
log.dirs={data}
broker.session.timeout.ms=3000
broker.heartbeat.interval.ms=500
auto.create.topics.enable=false
group.initial.rebalance.delay.ms=0
offsets.topic.replication.factor=1
offsets.topic.num.partitions=4
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
transaction.state.log.num.partitions=4
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
share.coordinator.state.topic.num.partitions=1
log.cleaner.dedupe.buffer.size=33554432
num.network.threads=2
num.io.threads=4
"""

_LOGGING = """\
appender.out.type=Console
appender.out.name=out
appender.out.layout.type=PatternLayout
appender.out.layout.pattern=%d %p %c{1} %m%n
rootLogger.level=WARN
rootLogger.appenderRef.out.ref=out
logger.server.name=kafka.server
logger.server.level=INFO
"""

_METADATA_REQUEST = struct.pack(">ihhihi", 14, 3, 0, 1, -1, 0)  # size, api, version, correlation, client, topics: all


def prepare(folder: Path) -> Launch:
    """Fetch the jars and format the storage on the first call."""
    class_path = jars.class_path("kafka", jars.KAFKA)
    settings = Settings(folder)
    port, controller_port = settings.port("port"), settings.port("controller_port")
    data, properties, logging = folder / "data", folder / "server.properties", folder / "log4j2.properties"
    properties.write_text(_PROPERTIES.format(port=port, controller_port=controller_port, data=data))
    logging.write_text(_LOGGING)
    command = (str(java()), *_JAVA_OPTIONS, f"-Dlog4j2.configurationFile={logging}", "-cp", class_path)
    if not (data / "meta.properties").exists():
        shutil.rmtree(data, ignore_errors=True)  # a format that was cut short
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        format_ = ("kafka.tools.StorageTool", "format", "--cluster-id", f"={cluster}", "--config", str(properties))
        run_once((*command, *format_), folder=folder, refuses_root=False, what="formatting Kafka's storage")
    return Launch(
        argv=(*command, "kafka.Kafka", str(properties)),
        ready=lambda _pid: _is_ready(port),
        url=f"127.0.0.1:{port}",
    )


def _is_ready(port: int) -> bool:
    """Whether the broker answers a Metadata request and counts itself among the live brokers."""
    with suppress(OSError, struct.error), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.sendall(_METADATA_REQUEST)
        answer = connection.recv(12, socket.MSG_WAITALL)
        _size, _correlation, brokers = struct.unpack(">iii", answer)
        return bool(brokers > 0)
    return False
