"""What a fault is played on: servers, proxies, the connector, its positions, the dice; and what is measured there."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from cdc.model.errors import FencedError
from tests.faults.connector import Connector, Copy
from tests.faults.origin import Origin
from tests.faults.reading import Positions
from tests.faults.servers import Servers

RECOVERED_S: Final = 120.0
_ENDS_S: Final = 90.0


class StuckError(Exception):
    """The connector does not come back."""


@dataclass
class Stage:
    """Faults act on it; every fault leaves it with a connector that is about to work again."""

    servers: Servers
    connector: Connector
    positions: Positions
    random: random.Random
    recoveries_s: list[float] = field(default_factory=list)
    """From each SIGKILL, with a restart at once, to the next position."""
    violations: list[str] = field(default_factory=list)

    @property
    def origin(self) -> Origin:
        return self.servers.origin

    def between(self, least_s: float, most_s: float) -> float:
        return self.random.uniform(least_s, most_s)

    def sleep(self, least_s: float, most_s: float) -> None:
        time.sleep(self.between(least_s, most_s))

    def kill(self) -> float:
        """SIGKILL to the copy that counts; when it died."""
        killed_at_s = time.time()
        self.connector.copy.kill()
        return killed_at_s

    def restart(self, killed_at_s: float) -> None:
        """A new copy at once, and until its first position: that is a recovery."""
        self.connector.start()
        self.recovered(killed_at_s)

    def recovered(self, killed_at_s: float) -> None:
        self.recoveries_s.append(self.settled(killed_at_s) - killed_at_s)

    def settled(self, since_s: float) -> float:
        """When the first position made after `since_s` could be read; copies that end meanwhile are started again."""
        deadline = time.time() + RECOVERED_S
        while True:
            found = self.positions.made_after(since_s, within_s=0.25)
            if found is not None:
                return found.seen_at_s
            self.connector.revive()
            if time.time() > deadline:
                raise StuckError(f"no position for {RECOVERED_S:.0f} s; see {self.connector.copy.log}")

    def until(self, condition: Callable[[], object], *, within_s: float) -> bool:
        """Whether `condition` came true in time."""
        deadline = time.monotonic() + within_s
        while not condition():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.01)
        return True

    def one_of_two(self, first: Copy, second: Copy) -> str:
        """Of two copies, one must end as fenced and say why; the other is the one that counts. Says which."""
        if not self.until(lambda: not (first.alive and second.alive), within_s=_ENDS_S):
            self.violations.append(f"two copies run side by side: {first.log.name} and {second.log.name}")
            first.kill()
            return "neither ended"
        ended, left = (second, first) if first.alive else (first, second)
        code = ended.process.wait(30)
        fenced = code == FencedError.exit_code or (code == 1 and "duplicate server_id" in ended.said())  # MariaDB
        if not fenced or not any(words in ended.said() for words in self.origin.superseded):
            self.violations.append(f"{ended.log.name} was superseded and ended {ended.process.returncode}, not fenced")
        self.connector.judge(ended)
        if self.connector.copy is not left:
            self.connector.copies.append(left)
        return "the first ended" if ended is first else "the second ended"
