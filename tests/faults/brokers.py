"""Three Kafka nodes, each of them broker and controller: without any one of them the others go on, and leaders move."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from confluent_kafka import ElectionType, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from cdc.dev.servers import kafka
from cdc.dev.servers.process import Launch, Server, Settings

NODES: Final = (1, 2, 3)
COORDINATED: Final = "__transaction_state"
"""Of one partition: the broker that leads it coordinates all transactions."""

_WITHIN_S: Final = 60.0
_ASKED_S: Final = 3.0
_SHUTDOWN_S: Final = 30.0
_HEAP: Final = "-Xmx256m"

_PROPERTIES: Final = """\
node.id={node}
controller.quorum.voters={voters}
default.replication.factor=3
min.insync.replicas=2
offsets.topic.replication.factor=3
offsets.topic.num.partitions=1
transaction.state.log.replication.factor=3
transaction.state.log.min.isr=2
transaction.state.log.num.partitions=1
leader.imbalance.check.interval.seconds=1
replica.fetch.backoff.ms=100
log.cleaner.backoff.ms=3600000
"""

_log: Final = logging.getLogger("cdc.tests.brokers")


class Cluster:
    """Nodes by their ids, each a server that can be stopped, killed and frozen by itself."""

    def __init__(self, folder: Path) -> None:
        self._folders = {node: folder / f"kafka-{node}" for node in NODES}
        for each in self._folders.values():
            each.mkdir()
        ports = {node: Settings(each).port("controller_port") for node, each in self._folders.items()}
        self._voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in ports.items())
        self._id = kafka.new_cluster()
        self.nodes = {
            node: Server(f"kafka-{node}", each, partial(self._prepare, node)) for node, each in self._folders.items()
        }
        self.url = ",".join(f"127.0.0.1:{Settings(each).port('port')}" for each in self._folders.values())
        self._admin = AdminClient(
            {"bootstrap.servers": self.url, "reconnect.backoff.max.ms": "250", "socket.timeout.ms": "2000"}, logger=_log
        )

    def _prepare(self, node: int, folder: Path) -> Launch:
        more = _PROPERTIES.format(node=node, voters=self._voters)
        launch = kafka.prepare(folder, cluster=self._id, more=more)
        program, *rest = launch.argv
        at = rest.index("-cp")
        return replace(launch, argv=(program, *rest[:at], _HEAP, *rest[at:]))

    def put_right(self) -> None:
        """Return when all nodes are up, and all replicas in sync."""
        for server in self.nodes.values():
            server.resume()
        with ThreadPoolExecutor(max_workers=len(NODES)) as pool:
            list(pool.map(Server.start, self.nodes.values()))  # one alone is no majority, and does not answer
        self.until(self._is_whole)

    def stop(self, node: int) -> None:
        """SIGTERM: the node hands over what it leads, and ends."""
        self.nodes[node].stop(timeout_s=_SHUTDOWN_S)

    def close(self) -> None:
        """Nothing of it is wanted any more."""
        for server in self.nodes.values():
            server.kill()

    def make(self, topic: str, replicas: Sequence[list[int]], settings: dict[str, str]) -> None:
        """Make a topic whose partitions have their replicas on these nodes."""
        new = NewTopic(topic, len(replicas), replica_assignment=list(replicas), config=settings)
        self._admin.create_topics([new])[topic].result(_WITHIN_S)

    def elect_unclean(self, topic: str, partitions: int) -> None:
        """Have replicas that are there lead, whatever they have of what was acknowledged."""
        deadline = time.monotonic() + _WITHIN_S
        for partition in range(partitions):
            asked = TopicPartition(topic, partition)
            while True:
                with suppress(KafkaException):
                    error = self._admin.elect_leaders(ElectionType.UNCLEAN, [asked]).result(_ASKED_S)[asked]
                    if error is None or error.code() == KafkaError.ELECTION_NOT_NEEDED:
                        break
                assert time.monotonic() < deadline, f"no leader of {topic}-{partition}"
                time.sleep(0.2)

    def leader(self, topic: str, partition: int = 0) -> int:
        """The node that leads, as soon as there is one."""

        def look(known: Any) -> int | None:
            found = known.topics[topic].partitions[partition].leader
            return found if found in NODES else None

        return self.until(look)

    def until(self, look: Callable[[Any], int | None]) -> int:
        """What `look` finds, as soon as it finds something."""
        deadline = time.monotonic() + _WITHIN_S
        while time.monotonic() < deadline:
            with suppress(KafkaException, KeyError):
                if found := look(self._admin.list_topics(timeout=_ASKED_S)):
                    return found
            time.sleep(0.1)
        raise AssertionError(f"the cluster does not come to what {look.__qualname__} looks for")

    def _is_whole(self, known: Any) -> bool:
        partitions = [each for topic in known.topics.values() for each in topic.partitions.values()]
        return len(known.brokers) == len(NODES) and all(
            each.leader in NODES and set(each.isrs) == set(each.replicas) for each in partitions
        )
