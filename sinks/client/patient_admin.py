"""Asks brokers as kafka-python's admin client does, and waits where a quota has it pause.

A broker whose quota is used up says so in its answer, and for how long. Until then kafka-python sends nothing more
there: it refuses each request at once, as if the broker were away.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Final

from kafka import KafkaAdminClient
from kafka.errors import NodeNotReadyError

_WAITED_S: Final = 60.0
_LOOK_S: Final = 0.1


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
            except NodeNotReadyError:
                if not self._is_paused() or time.monotonic() > until_s:
                    raise
                time.sleep(_LOOK_S)

    def brokers(self) -> list[int]:
        """Return the numbers of the brokers: `describe_cluster` ends as a KeyError at those before Kafka 3.7."""
        return sorted(broker.node_id for broker in self._admin._manager.cluster.brokers())  # noqa: SLF001 - no public way

    def _is_paused(self) -> bool:
        return any(connection.paused for connection in [*self._admin._manager._conns.values()])  # noqa: SLF001 - no public way
