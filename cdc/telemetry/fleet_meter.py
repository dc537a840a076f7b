"""The meter of a fleet's member: its own figures, the fleet's, and its connectors' own metrics beside them."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from typing import Final

from cdc.fleet.entry import Entries
from cdc.fleet.roster import Reason
from cdc.fleet.seams import Assigned, GroupMember, Lost, News, Revoked
from cdc.fleet.standing import WAITING, Status, standing
from cdc.machine.sockets import short_name
from cdc.model.meter import RunState
from cdc.telemetry.figures import Figures, Values
from cdc.telemetry.health import Pulse, Verdict
from cdc.telemetry.metrics import FLEET

_STATES: Final = (WAITING, *(state.value for state in RunState), *(reason.value for reason in Reason))
_ANSWER_S: Final = 3.0
"""So long a connector's process may take to answer."""
_ALL_S: Final = 6.0
"""So long all of them: who scrapes gives up after 10 s, as a rule."""
_AT_ONCE: Final = 16
_KEPT_S: Final = 1.0
"""Scrapes that come at once share what one of them has been told."""


class FleetMeter:
    """Is told by the member's loop and by a watch of the group, and asked by others."""

    def __init__(self, fleet: str, member: str, sockets: Path) -> None:
        """`sockets` is the folder in which each child answers at ``NAME.sock``."""
        self.figures = Figures(FLEET, {"fleet": fleet, "member": member})
        self._sockets = sockets
        self._pulse = Pulse()
        self._joined = self._begun = False
        self._entries: Entries = Entries({}, {})
        self._statuses: Mapping[str, Status] = {}
        self._members: Sequence[GroupMember] = ()
        self._answered_s = 0.0
        self._own: frozenset[str] = frozenset()
        self._up: frozenset[str] = frozenset()
        self._asking = threading.Lock()
        self._told: dict[str, tuple[float, list[bytes]]] = {}
        figures = self.figures
        asked: dict[str, Callable[[], Values]] = {
            "cdc_fleet_members": lambda: {(): len(self._members)} if self._answered_s else {},
            "cdc_fleet_coordinator_timestamp_seconds": lambda: {(): self._answered_s} if self._answered_s else {},
            "cdc_fleet_joined": lambda: {(): float(self._joined)},
            "cdc_fleet_connectors": self._states,
            "cdc_fleet_connector_up": lambda: {(name,): float(name in self._up) for name in self._own},
            "cdc_fleet_moved_timestamp_seconds": lambda: {(): time.time() - self._pulse.still_s()},
        }
        for name, values in asked.items():
            figures.ask(name, values)
        figures.add("cdc_fleet_rebalances_total", 0)
        figures.add("cdc_fleet_losses_total", 0)
        for answer in ("yes", "no"):
            figures.add("cdc_fleet_starts_total", 0, answer)
        for reason in Reason:
            figures.add("cdc_fleet_ends_total", 0, reason.value)

    # --- What the member says -----------------------------------------------------------------------------------------

    def moves(self) -> None:
        self._pulse.moves()

    def sees(self, entries: Entries, statuses: Mapping[str, Status]) -> None:
        self._entries, self._statuses = entries, statuses

    def hears(self, news: News) -> None:
        if isinstance(news, Assigned | Revoked):
            self._joined = self._begun = True
            self.figures.add("cdc_fleet_rebalances_total", 1)
        elif isinstance(news, Lost):
            self._joined = False
            self.figures.add("cdc_fleet_losses_total", 1)

    def has(self, connectors: frozenset[str]) -> None:
        self._own = connectors

    def starts(self, *, take_over: bool) -> None:
        self.figures.add("cdc_fleet_starts_total", 1, "yes" if take_over else "no")

    def ends(self, why: str) -> None:
        self.figures.add("cdc_fleet_ends_total", 1, why)

    def answered(self, members: Sequence[GroupMember] | None) -> None:
        """Take what the group's coordinator says; None: it did not answer."""
        if members is not None:
            self._members, self._answered_s = members, time.time()

    # --- What is told at a scrape -------------------------------------------------------------------------------------

    def _states(self) -> Values:
        if not self._answered_s:
            return {}
        rows = standing(self._entries, self._statuses, self._members).values()
        found = Counter(str(row["state"]) for row in rows)
        return {(state,): found[state] for state in dict.fromkeys((*_STATES, *found))}

    def children(self, accept: str) -> Sequence[bytes]:
        """Return what the connectors' processes show; one that does not answer in time is left out, and not `up`."""
        with self._asking:
            at_s, told = self._told.get(accept, (float("-inf"), list[bytes]()))
            if time.monotonic() - at_s < _KEPT_S:
                return told
            names = sorted(self._own)
            pool = ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="cdc-fleet-scrape")
            asked = {pool.submit(_ask, self._sockets / f"{name}.sock", accept): name for name in names}
            done, _ = wait(asked, _ALL_S)
            pool.shutdown(wait=False, cancel_futures=True)
            found = {asked[one]: text for one in done if (text := one.result()) is not None}
            self._up = frozenset(found)
            told = [found[name] for name in names if name in found]
            self._told[accept] = (time.monotonic(), told)
            return told

    # --- Health -------------------------------------------------------------------------------------------------------

    def looks(self) -> None: ...

    def live(self) -> Verdict:
        return self._pulse.verdict(kafka=not self._begun)

    def ready(self) -> Verdict:
        return Verdict(ok=self._joined, said="in the group" if self._joined else "not in the group")

    def started(self) -> Verdict:
        """Whether it runs: one that waits for brokers, or for a fleet that has no entry yet, does."""
        return Verdict(ok=True, said="in the group" if self._joined else "not in the group yet")


class _OfSocket(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=_ANSWER_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with short_name(self._path) as name:
            self.sock.connect(name)


def _ask(path: Path, accept: str) -> bytes | None:
    """Return a process's metrics; None: it does not answer."""
    connection = _OfSocket(path)
    try:
        connection.request("GET", "/metrics", headers={"Accept": accept} if accept else {})
        answer = connection.getresponse()
        text = answer.read()
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()
    return text if answer.status == http.client.OK else None
