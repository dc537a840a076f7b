"""Asks brokers as kafka-python's admin client does; waits where a quota has it pause, and says who is out of reach.

A broker whose quota is used up says so in its answer, and for how long. Until then kafka-python sends nothing more
there: it refuses each request at once, as if the broker were away.

The address in a file is only the first that is asked: a broker there names the addresses that requests go to.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any, Final

from kafka import KafkaAdminClient
from kafka.errors import KafkaConnectionError, KafkaTimeoutError, NodeNotReadyError

from cdc.model.errors import RetryableError

_WAITED_S: Final = 60.0
_LOOK_S: Final = 0.1
_REACHED_S: Final = 3.0
_PORT: Final = 9092
"""The clients' own, where an address has none."""
_UNREACHED: Final = (NodeNotReadyError, KafkaConnectionError, KafkaTimeoutError)


class PatientAdmin:
    """Has the methods of an admin client, whose errors it raises."""

    def __init__(self, admin: KafkaAdminClient) -> None:
        self._admin = admin

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - a method of the client's
        method = getattr(self._admin, name)

        def patiently(*given: Any, **named: Any) -> Any:  # noqa: ANN401
            return self._patiently(lambda: method(*given, **named))

        return patiently

    def _patiently(self, ask: Callable[[], Any]) -> Any:  # noqa: ANN401
        until_s = time.monotonic() + _WAITED_S
        while True:
            try:
                return ask()
            except _UNREACHED as exc:
                waits = isinstance(exc, NodeNotReadyError) and self._is_paused()
                if not waits or time.monotonic() > until_s:
                    self.require_reach(exc)
                    raise
                time.sleep(_LOOK_S)

    def brokers(self) -> list[int]:
        """Return the numbers of the brokers: `describe_cluster` ends as a KeyError at those before Kafka 3.7."""
        return sorted(broker.node_id for broker in self._admin._manager.cluster.brokers())  # noqa: SLF001 - no public way

    def require_reach(self, cause: Exception) -> None:
        """Raise RetryableError if the cluster names another address than the file, and only the file's is reached."""
        for broker in self._admin._manager.cluster.brokers():  # noqa: SLF001 - no public way
            first, at = self._admin.config["bootstrap_servers"], f"{broker.host}:{broker.port}"
            if at in first or (why := _unreached(broker.host, broker.port)) is None:
                continue
            if any(_unreached(*_host_and_port(of)) is None for of in first):
                raise RetryableError(
                    f"Kafka at {','.join(first)} answers, and sends clients on to {at}, which cannot be reached from "
                    f"here: {why}",
                    hint="is that broker up? If it is: advertised.listeners is the address that it tells its clients, "
                    "which this machine must reach. One in a container needs another listener for those outside",
                ) from cause
            return  # all of Kafka is away

    def _is_paused(self) -> bool:
        return any(connection.paused for connection in [*self._admin._manager._conns.values()])  # noqa: SLF001 - no public way


def _unreached(host: str, port: int) -> str | None:
    """Return why nobody is found at an address; None: somebody is."""
    try:
        socket.create_connection((host, port), timeout=_REACHED_S).close()
    except OSError as exc:
        return exc.strerror or str(exc)
    return None


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return (host.strip("[]"), int(port)) if host and port.isdecimal() else (address, _PORT)
