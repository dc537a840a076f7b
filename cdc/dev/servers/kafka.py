"""Runs Apache Kafka for development and tests: one node that is broker and controller (KRaft), on loopback.

Set for a short start rather than for load: few partitions in the internal topics, the quick compiler only, small
buffers. `KAFKA_JVM_PERFORMANCE_OPTS` takes the place of the compiler's and the collector's options, as with Kafka's own
scripts. After a SIGKILL the controller refuses the broker until its old session has run out, hence the short session.

Beside it Apicurio Registry: a schema registry in memory, with Confluent's API. What is registered is gone when it
stops, and connectors register their schemas again.
"""

from __future__ import annotations

import base64
import os
import shutil
import socket
import struct
import uuid
from contextlib import suppress
from typing import TYPE_CHECKING

from cdc.dev import jars
from cdc.dev.java import console_logging, java
from cdc.dev.servers.process import Launch, Settings, answers, run_once

if TYPE_CHECKING:
    from pathlib import Path

_HEAP = ("-Xmx512m", "-Xms128m")
_QUICK = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -Xshare:auto"

_PROPERTIES = """\
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:{controller_port}
listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port}{proxied}
advertised.listeners=PLAINTEXT://127.0.0.1:{port}{advertised}
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,PROXIED:PLAINTEXT
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

_SECURE = """listeners=PLAINTEXT://127.0.0.1:{port},CONTROLLER://127.0.0.1:{controller_port},SECURE://127.0.0.1:{secure_port}
advertised.listeners=PLAINTEXT://127.0.0.1:{port},SECURE://localhost:{secure_port}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SECURE:SASL_SSL
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=SCRAM-SHA-512
listener.name.secure.scram-sha-512.sasl.jaas.config=org.apache.kafka.common.security.scram.ScramLoginModule required;
listener.name.secure.ssl.keystore.type=PEM
listener.name.secure.ssl.keystore.location={certificate}
"""

_LOGGING = """\
logger.server.name=kafka.server
logger.server.level=INFO
"""

_METADATA_REQUEST = struct.pack(">ihhihi", 14, 3, 0, 1, -1, 0)  # size, api, version, correlation, client, topics: all


def prepare(
    folder: Path,
    *,
    certificate: Path | None = None,
    advertised_port: int | None = None,
    cluster: str | None = None,
    more: str = "",
    coordinates: tuple[str, ...] = jars.KAFKA,
) -> Launch:
    """Fetch the jars and format the storage on the first call.

    With a `certificate` (PEM: key, then chain; for localhost) the broker listens at the setting `secure_port` too:
    TLS, and a login by SCRAM-SHA-512. `advertised_port` is a proxy's: a second listener, on `proxied_port`, sends its
    clients there. A node of a larger cluster is given the `cluster` id and `more` properties, which override ours.
    `coordinates` are the broker's, of Kafka 3.0 or later.
    """
    class_path = jars.class_path("kafka", coordinates)
    settings = Settings(folder)
    port, controller_port = settings.port("port"), settings.port("controller_port")
    data, properties, logging = folder / "data", folder / "server.properties", folder / "log4j2.properties"
    proxied = advertised = ""
    if advertised_port is not None:
        proxied = f",PROXIED://127.0.0.1:{proxied_port(folder)}"
        advertised = f",PROXIED://127.0.0.1:{advertised_port}"
    text = _PROPERTIES.format(
        port=port, controller_port=controller_port, data=data, proxied=proxied, advertised=advertised
    )
    if certificate is not None:  # of a key given twice the last counts
        secure_port = settings.port("secure_port")
        text += _SECURE.format(
            port=port, controller_port=controller_port, secure_port=secure_port, certificate=certificate
        )
    properties.write_text(text + more)
    logging.write_text(console_logging("WARN") + _LOGGING)
    options = os.environ.get("KAFKA_JVM_PERFORMANCE_OPTS", _QUICK).split()
    command = (str(java()), *_HEAP, *options, f"-Dlog4j2.configurationFile={logging}", "-cp", class_path)
    if not (data / "meta.properties").exists():
        shutil.rmtree(data, ignore_errors=True)  # a format that was cut short
        cluster = cluster or new_cluster()
        format_ = ("kafka.tools.StorageTool", "format", f"--cluster-id={cluster}", "--config", str(properties))
        run_once((*command, *format_), folder=folder, refuses_root=False, what="formatting Kafka's storage")
    return Launch(
        argv=(*command, "kafka.Kafka", str(properties)),
        ready=lambda _pid: is_ready(port),
        url=f"127.0.0.1:{port}",
    )


def new_cluster() -> str:
    """Make an id that no other cluster has."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def proxied_port(folder: Path) -> int:
    """Return the port where a broker prepared with an `advertised_port` listens for that proxy."""
    return Settings(folder).port("proxied_port")


def is_ready(port: int) -> bool:
    """Whether the broker answers a Metadata request and counts itself among the live brokers."""
    with suppress(OSError, struct.error), socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
        connection.sendall(_METADATA_REQUEST)
        answer = connection.recv(12, socket.MSG_WAITALL)
        _size, _correlation, brokers = struct.unpack(">iii", answer)
        return bool(brokers > 0)
    return False


_REGISTRY_API = "/apis/ccompat/v7"
_REGISTRY_HEAP = ("-Xms64m", "-Xmx256m")


def prepare_registry(folder: Path) -> Launch:
    """Fetch and unpack the registry on the first call."""
    port = Settings(folder).port("port")
    (runner,) = jars.unpacked("registry", jars.REGISTRY, sha256=jars.REGISTRY_SHA256).glob("*-runner.jar")
    return Launch(
        argv=(
            *(str(java()), *_REGISTRY_HEAP, *_QUICK.split()),
            *("-Dquarkus.http.host=127.0.0.1", f"-Dquarkus.http.port={port}", "-jar", str(runner)),
        ),
        ready=lambda _pid: answers(port, f"{_REGISTRY_API}/subjects"),
        url=f"http://127.0.0.1:{port}{_REGISTRY_API}",
    )
