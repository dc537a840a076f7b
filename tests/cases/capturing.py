"""The connector that cases go through, of any source."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator, Sequence

from tests.integration.connector import Connector
from tests.integration.nudges import nudged
from tests.integration.running import Running


class Capturing(Connector):
    """A connector whose process can be followed."""

    def ask_to_read(self, tables: Sequence[str]) -> None:
        """Ask to read tables again."""
        asked = self.here("snapshot", "start", "FILE", *(word for name in tables for word in ("--table", name)))
        assert asked.returncode == 0, asked.stderr

    @contextlib.contextmanager
    def following(self, *, settles: bool = True) -> Iterator[Callable[[], str]]:
        """`settles`: it is stopped cleanly, and else killed."""
        with Running(self) as run:
            run.await_following()
            with nudged(self.owner_url):
                yield lambda: run.stderr
            if not settles:
                run.kill()
                return
            run.process.send_signal(signal.SIGTERM)
            assert run.ended() == 0, run.stderr
