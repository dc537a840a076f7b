"""What a page can show, made up: every state of a connector, stores, views and consumers, and hostile words."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from cdc.model.hints import CONNECTOR
from cdc.monitor.commands import PageCommands
from cdc.monitor.figures import MonitorFigures
from cdc.monitor.judged import STATES, Problem, level_of
from cdc.monitor.looks import Look
from cdc.monitor.monitor import Monitor
from cdc.monitor.server import PageServer
from cdc.monitor.watched import Watched

TOKEN = "0123456789abcdef-token"
HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>&amp;"
HINT = "cdc snapshot start shop.yaml --after-gap"


class Made:
    """Something that is watched, with an entry that a test changes."""

    def __init__(self, kind: str, name: str, entry: dict[str, Any], plots: tuple[str, str]) -> None:
        self.kind, self.name, self.made, self._plots = kind, name, entry, plots
        self.file, self.called = f"{name}.yaml", CONNECTOR

    def looks(self) -> Sequence[Look[Any]]:
        return ()

    def entry(self) -> dict[str, Any]:
        return {"name": self.name, **self.made}

    def series(self) -> dict[str, list[float | None]]:
        now, count = time.time(), 90
        waves = [
            [float(abs((n * step) % 37 - 18)) / scale for n in range(count)] for step, scale in ((5, 20), (7, 0.05))
        ]
        return {"at": [now - 2 * (count - n) for n in range(count)],
                self._plots[0]: list(waves[0]), self._plots[1]: list(waves[1])}  # fmt: skip


def connector(name: str, state: str = "streaming", **more: Any) -> Made:
    problems = [Problem(**of) for of in more.pop("problems", [])]
    entry = {
        "file": f"{name}.yaml",
        "source": "postgres",
        "state": state,
        "level": level_of(state, problems),
        "phase": "stream",
        "running": state not in ("stopped", "failed"),
        "owner": {"who": "cdc shop (process 4711) from 10.0.0.7", "since_ms": 1_790_000_000_000},
        "standby": 1,
        "paused_at": None,
        "position": {"lsn": "0/177A968"},
        "committed_at": "2026-09-21T14:13:20.000+00:00",
        "lag_seconds": 0.4,
        "lag_bytes": 1_200_000,
        "events_per_second": 412.5,
        "tables": 12,
        "slot": {"name": "cdc_shop", "wal_status": "reserved", "active": True, "retained_wal_bytes": 52_000_000},
        "log_left_seconds": 41_000,
        "log_left": "11 h 23 min at the present rate, 9,812 MB are left",
        "snapshot": {},
        "reading": {},
        "last_error": None,
        "problems": [problem.as_json() for problem in problems],
        "consumers": {"groups": [], "failure": None, "no_commits": None},
        **more,
    }
    return Made("connectors", name, entry, ("lag_seconds", "events_per_second"))


def group(name: str, status: str, records: int, seconds: float, *, exact: bool = True) -> dict[str, Any]:
    return {
        "group": name,
        "members": "stable",
        "records": records,
        "exact": exact,
        "seconds": seconds,
        "status": status,
    }


def store(name: str, **more: Any) -> Made:
    copy = {
        "store": "warehouse",
        "connector": "shop",
        "position": None,
        "freshness_seconds": 1.2,
        "tables": 12,
        "incomplete": [],
        "aside": [],
        "quarantined": 0,
        "verified_at": "2026-09-21T03:00:00.000+00:00",
        "differing": 0,
    }
    entry = {"file": f"{name}.yaml", "state": "following", "level": "ok", "freshness_seconds": 1.2, "copies": [copy],
             "problems": [], "events_per_second": 400.0, **more}  # fmt: skip
    return Made("stores", name, entry, ("freshness_seconds", "events_per_second"))


def views(name: str, **more: Any) -> Made:
    of = {
        "view": "order_totals",
        "topic": "shop.view.order_totals",
        "rows": 18_204,
        "quarantined": 0,
        "late": 0,
        "stopped": None,
    }
    entry = {"file": f"{name}.yaml", "level": "ok", "freshness_seconds": 0.8, "position": None, "engine": "duckdb",
             "rows": 18_204, "views": [of], "problems": [], **more}  # fmt: skip
    return Made("views", name, entry, ("freshness_seconds", "rows"))


def every_state() -> list[Watched]:
    """One connector in each state, and one whose words are markup."""
    made = [connector(f"c-{state}", state) for state in STATES]
    hostile = connector(
        "hostile",
        "failed",
        problems=[{"level": "bad", "says": HOSTILE, "hint": HINT}],
        last_error={"at_ms": 1, "message": HOSTILE, "hint": HINT},
        consumers={
            "groups": [group(HOSTILE, "stopped", 81_204, 5_312.4, exact=False)],
            "failure": None,
            "no_commits": HOSTILE,
        },
    )
    return [*made, hostile, store("warehouse"), views("totals")]


@contextmanager
def served(
    watched: Sequence[Watched], *, commands: bool = True, refused: Sequence[dict[str, Any]] = ()
) -> Iterator[str]:
    """Serve the page; give its address."""
    of = PageCommands([], TOKEN) if commands else None
    monitor = Monitor(watched, refused, commands=commands)
    server = PageServer(("127.0.0.1", 0), monitor, MonitorFigures(watched).registry, of)
    with server, monitor:
        yield f"http://127.0.0.1:{server.port}"


AXE = Path(__file__).with_name("axe.js")
