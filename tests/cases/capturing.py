"""The connector that cases go through, of any source."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

from tests.integration.connector import Connector
from tests.integration.nudges import nudged
from tests.integration.running import Running


class Capturing(Connector):
    """A connector whose process can be followed."""

    @contextlib.contextmanager
    def following(self) -> Iterator[Callable[[], str]]:
        with Running(self) as run:
            run.await_following()
            with nudged(self.owner_url):
                yield lambda: run.stderr
            run.process.send_signal(signal.SIGTERM)
            assert run.ended() == 0, run.stderr
