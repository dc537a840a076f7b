"""What is watched: a connector, an apply job or a view job, by its file, whether it runs or not."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final, Protocol

from cdc.config import registry
from cdc.config.config import ApplyConfig, ConnectorConfig, load_apply, load_connector
from cdc.config.views import ViewsConfig, load_views
from cdc.model.errors import RetryableError
from cdc.model.hints import APPLY, CONNECTOR, VIEWS
from cdc.monitor import process as processes
from cdc.monitor.consumers import Consumers, read_consumers, topics_of
from cdc.monitor.judged import Problem, Rate, level_of, log_left, problems_of, state_of
from cdc.monitor.looks import Answer, Failure, FileNow, Look
from cdc.monitor.status import at_work, committed_ago_s, instant, standing, status_of, stores_status, tells_who

SERVER_S: Final = 2.0
KAFKA_S: Final = 3.0
PROCESS_S: Final = 2.0
STORES_S: Final = 5.0
VIEWS_S: Final = 5.0
CONSUMERS_S: Final = 15.0
POINTS: Final = 300
"""So many points of each plot are kept: ten minutes."""


class Watched(Protocol):
    """Something that is watched."""

    name: str
    file: str
    kind: str
    """``connectors``, ``stores`` or ``views``: where it is shown."""
    called: str
    """What hints call its file."""

    def looks(self) -> Iterable[Look[Any]]:
        """Return all questions that are asked of it."""

    def entry(self) -> dict[str, Any]:
        """Return what is known of it now, as JSON values. It waits for nothing."""

    def series(self) -> dict[str, list[float | None]]:
        """Return the points of its plots."""


class _Series:
    """Keeps the points of two plots."""

    def __init__(self, one: str, other: str) -> None:
        self._names = (one, other)
        self._points: deque[tuple[float, float | None, float | None]] = deque(maxlen=POINTS)

    def add(self, one: float | None, other: float | None) -> None:
        self._points.append((round(time.time(), 1), one, other))

    def as_json(self) -> dict[str, list[float | None]]:
        points = list(self._points)
        return {
            "at": [at for at, _, _ in points],
            self._names[0]: [one for _, one, _ in points],
            self._names[1]: [other for _, _, other in points],
        }


class WatchedConnector:
    """A connector."""

    kind = "connectors"
    called = CONNECTOR

    def __init__(self, file: Path, config: ConnectorConfig, *, pace: float = 1.0) -> None:
        """`pace` makes the time between two questions longer: where many are watched."""
        self.name, self.file = config.name, str(file)
        self._now = now = FileNow(file, config, load_connector)
        self._events, self._log = Rate(), Rate()
        self._by_process = False
        self._series = _Series("lag_seconds", "events_per_second")
        ask = registry.standing(config)
        self._kafka: Look[tuple[Any, int, float | None]] = Look(
            f"{self.name} in Kafka", lambda: now.ask(self._in_kafka), every_s=pace * KAFKA_S
        )
        self._server: Look[dict[str, Any]] = Look(
            f"{self.name} at its source",
            lambda: self._grown(dict(now.ask(lambda config: ask(config, self._state())))),
            every_s=pace * SERVER_S,
        )
        self._process: Look[processes.Process] | None = None
        if config.metrics.listen is not None:
            self._process = Look(f"process of {self.name}", self._of_process, every_s=PROCESS_S)
        self._consumers: Look[Consumers] = Look(
            f"consumers of {self.name}", lambda: now.ask(self._of_consumers), every_s=pace * CONSUMERS_S
        )

    @property
    def config(self) -> ConnectorConfig:
        """What its file says, as far as that was looked at."""
        return self._now.config

    def looks(self) -> Iterable[Look[Any]]:
        return [look for look in (self._server, self._kafka, self._process, self._consumers) if look is not None]

    def at_work(self) -> bool | None:
        """Tell whether somebody follows the log now; None: it is not known, or the connector has never run."""
        server, kafka = self._server.answer(), self._kafka.answer()
        if server.failure is not None or server.value is None or (kafka.value is not None and kafka.value[0] is None):
            return None
        return self._at_work(dict(server.value))

    def consumers(self) -> Consumers | None:
        """Return the groups, as they were looked at last."""
        return self._consumers.answer().value

    def _state(self) -> Any:  # noqa: ANN401 - cdc.model.state.State | None
        found = self._kafka.answer().value
        return found[0].state if found is not None and found[0] is not None else None

    def _in_kafka(self, config: ConnectorConfig) -> tuple[Any, int, float | None]:
        """Return what Kafka says of the connector, when that was, and how long before it the last commit."""
        at = standing(config)
        if at is not None and at.state is not None and not self._by_process:
            sink = config.sink
            with registry.part("sinks.topics.topics:Topics")(sink.bootstrap_servers, sink.options) as topics:
                self._events.saw(topics.ends(topics_of(config, at.state)))
        told = at is None or tells_who(self._server.answer().value or {})
        ago_s = None if told else committed_ago_s(config, at.committed_at_ms)
        return at, time.time_ns() // 1_000_000, ago_s

    def _grown(self, found: dict[str, Any]) -> dict[str, Any]:
        if found.get("log_end_number") is not None:
            self._log.saw(float(found["log_end_number"]))
        return found

    def _of_process(self) -> processes.Process:
        found = processes.ask(self.config.metrics, label="connector", name=self.name)
        if not self._by_process:
            self._events, self._by_process = Rate(), True
        self._events.saw(found.events)
        return found

    def _of_consumers(self, config: ConnectorConfig) -> Consumers:
        state = self._state()
        if state is None:
            raise RetryableError(f"connector {self.name} has never run")
        return read_consumers(config, state)

    def entry(self) -> dict[str, Any]:
        kafka, server = self._kafka.answer(), self._server.answer()
        process = self._process.answer() if self._process is not None else None
        alive = process.value if process is not None and process.failure is None else None
        raw = dict(server.value or {})
        if server.failure is not None:
            raw = {"unreachable": server.failure.message}
        ago_s = kafka.value[2] if kafka.value is not None else None
        found = status_of(self.config, kafka.value[0], raw, ago_s) if kafka.value is not None else None
        working = self._at_work(raw)
        if kafka.value is None and kafka.failure is None:
            state = "starting"  # nothing was answered yet
        else:
            state = state_of(
                found, alive.state if alive is not None else None, server=server.failure is None, at_work=working
            )
        growth = self._log.a_second()
        left_s, left = log_left(found["slot"] if found else None, raw.get("binlog"), growth=growth,
                                lag_s=_held_s(found, kafka.value))  # fmt: skip
        kept_s = (raw.get("binlog") or {}).get("kept_for_seconds")
        problems = problems_of(found, state=state, left_s=left_s, kept_s=kept_s) if found is not None else []
        problems = [*_failures(("Kafka", kafka), ("the source", server)), *problems]
        rate = self._events.a_second()
        entry = {
            "name": self.name,
            "file": self.file,
            "source": self.config.source.type,
            "state": state,
            "level": level_of(state, problems),
            "phase": found["phase"] if found else None,
            "running": working,
            "owner": raw.get("owner"),
            "standby": found["standby"] if found else None,
            "paused_at": found["paused_at"] if found else None,
            "position": found["position"] if found else None,
            "committed_at": found["committed_at"] if found else None,
            "lag_seconds": found["lag_seconds"] if found else None,
            "lag_bytes": found["lag_bytes"] if found else None,
            "events_per_second": None if rate is None else round(rate, 1),
            "tables": len(found["tables"]) if found else None,
            "slot": found["slot"] if found else None,
            "log_left_seconds": None if left_s is None else round(left_s),
            "log_left": left,
            "snapshot": found["snapshot"] if found and found["phase"] == "snapshot" else {},
            "reading": found["reading"] if found else {},
            "last_error": found["last_error"] if found else None,
            "problems": [problem.as_json() for problem in problems],
            "consumers": self._groups(),
        }
        self._series.add(entry["lag_seconds"], entry["events_per_second"])
        return entry

    def _at_work(self, raw: dict[str, Any]) -> bool | None:
        """Tell whether somebody follows the log; one that has never run has none who could."""
        kafka = self._kafka.answer().value
        never = kafka is not None and kafka[0] is None
        return at_work(self.config, raw, float("inf") if never else kafka[2] if kafka is not None else None)

    def _groups(self) -> dict[str, Any]:
        answer = self._consumers.answer()
        groups = [
            {
                "group": group.group,
                "members": group.state.lower(),
                "records": group.records,
                "exact": group.exact,
                "seconds": group.seconds,
                "status": group.status.value,
            }
            for group in (answer.value.groups if answer.value is not None else ())
        ]
        why = answer.failure.message if answer.failure is not None else None
        return {"groups": groups, "failure": why, "no_commits": answer.value.no_commits if answer.value else None}

    def series(self) -> dict[str, list[float | None]]:
        return self._series.as_json()


def _held_s(found: dict[str, Any] | None, kafka: Any) -> float | None:  # noqa: ANN401 - Standing and Kafka's time
    """Return how old the log is that the position needs: before all tables are read, from the snapshot's begin on."""
    if found is None or found["lag_seconds"] is not None:
        return found["lag_seconds"] if found else None
    state = kafka[0].state if kafka[0] is not None else None
    return (kafka[1] - state.source_ms) / 1000 if state is not None and state.source_ms else None


def _failures(*asked: tuple[str, Answer[Any]]) -> list[Problem]:
    return [_problem(f"{of} cannot be asked", answer.failure) for of, answer in asked if answer.failure is not None]


def _problem(what: str, failure: Failure) -> Problem:
    return Problem("bad", f"{what} since {instant(failure.since_ms)}: {failure.message}", failure.hint)


class WatchedJob:
    """An apply job: the stores that it keeps."""

    kind = "stores"
    called = APPLY

    def __init__(self, file: Path, config: ApplyConfig) -> None:
        self.name, self.file = config.name, str(file)
        self._now = now = FileNow(file, config, load_apply)
        self._series = _Series("freshness_seconds", "events_per_second")
        self._events = Rate()
        self._stores: Look[dict[str, Any]] = Look(
            f"stores of {self.name}", lambda: now.ask(stores_status), every_s=STORES_S
        )
        self._verified: Look[dict[tuple[str, str], dict[str, Any]]] = Look(
            f"verify of {self.name}", lambda: now.ask(_verified), every_s=CONSUMERS_S
        )
        self._process: Look[processes.Process] | None = None
        if config.metrics.listen is not None:
            self._process = Look(f"process of {self.name}", self._of_process, every_s=PROCESS_S)

    @property
    def config(self) -> ApplyConfig:
        """What its file says, as far as that was looked at."""
        return self._now.config

    def looks(self) -> Iterable[Look[Any]]:
        return [look for look in (self._stores, self._verified, self._process) if look is not None]

    def verified(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Return what was verified last, by store and table."""
        return self._verified.answer().value or {}

    def _of_process(self) -> processes.Process:
        found = processes.ask(self.config.metrics, label="apply", name=self.name)
        self._events.saw(found.events)
        return found

    def entry(self) -> dict[str, Any]:
        answer, process = self._stores.answer(), self._process.answer() if self._process is not None else None
        problems = _failures(("Kafka, or a store,", answer))
        copies = [self._copy(store, connector, at) for store, of in (answer.value or {}).items()
                  for connector, at in of.items()]  # fmt: skip
        for copy in copies:
            problems += copy.pop("problems")
        alive = process.value if process is not None and process.failure is None else None
        if process is not None and process.failure is not None:
            problems.append(Problem("bad", process.failure.message, f"cdc apply {APPLY}"))
        fresh = [copy["freshness_seconds"] for copy in copies if copy["freshness_seconds"] is not None]
        state = (alive.state or "unknown") if alive is not None else "stopped" if process is not None else "not told"
        levels = [problem.level for problem in problems]
        rate = self._events.a_second()
        self._series.add(max(fresh, default=None), rate)
        return {
            "name": self.name,
            "file": self.file,
            "state": "starting" if answer.value is None and answer.failure is None else state,
            "level": "bad" if "bad" in levels else "warn" if levels else "ok",
            "freshness_seconds": max(fresh, default=None),
            "events_per_second": None if rate is None else round(rate, 1),
            "copies": copies,
            "problems": [problem.as_json() for problem in problems],
        }

    def _copy(self, store: str, connector: str, at: dict[str, Any]) -> dict[str, Any]:
        problems: list[Problem] = []
        if at["quarantined"]:
            held = sum(at["quarantined"].values())
            problems.append(
                Problem("warn", f"{store}: {held:,} events are in quarantine", f"cdc quarantine list {APPLY}")
            )
        problems += [Problem("bad", f"{store}: {table} is set aside: {why['reason']}", why["hint"])
                     for table, why in at["aside"].items()]  # fmt: skip
        if at["remade"]:
            problems.append(Problem("bad", f"{store}: copies of another topic: {', '.join(at['remade'])}",
                                    f"cdc apply {APPLY} --plan"))  # fmt: skip
        checked = {table: of for (name, table), of in self.verified().items() if name == store}
        differing = sum(of["differing"] for of in checked.values())
        if differing:
            problems.append(Problem("bad", f"{store}: {differing:,} rows differed when it was verified",
                                    f"cdc verify {CONNECTOR} {APPLY}"))  # fmt: skip
        return {
            "store": store,
            "connector": connector,
            "position": at["position"],
            "freshness_seconds": at["freshness_seconds"],
            "tables": len(at["tables"]),
            "incomplete": at["incomplete"],
            "aside": sorted(at["aside"]),
            "quarantined": sum(at["quarantined"].values()),
            "verified_at": instant(min(of["at_ms"] for of in checked.values())) if checked else None,
            "differing": differing if checked else None,
            "problems": problems,
        }

    def series(self) -> dict[str, list[float | None]]:
        return self._series.as_json()


class WatchedViews:
    """A view job."""

    kind = "views"
    called = VIEWS

    def __init__(self, file: Path, config: ViewsConfig) -> None:
        self.name, self.file = config.name, str(file)
        self._series = _Series("freshness_seconds", "rows")
        ask: Callable[..., dict[str, Any]] = registry.part("spark_apply.views.publishing.status:view_status")
        now = FileNow(file, config, load_views)
        self._views: Look[dict[str, Any]] = Look(f"views of {self.name}", lambda: now.ask(ask), every_s=VIEWS_S)

    def looks(self) -> Iterable[Look[Any]]:
        return [self._views]

    def entry(self) -> dict[str, Any]:
        answer = self._views.answer()
        problems, found = _failures(("Kafka", answer)), answer.value or {"views": {}, "freshness_seconds": None}
        views = []
        for name, of in found["views"].items():
            if of["stopped"]:
                problems.append(Problem("bad", f"view {name} is stopped: {of['stopped']}", f"cdc view plan {VIEWS}"))
            views.append(
                {"view": name, **{part: of[part] for part in ("topic", "rows", "quarantined", "late", "stopped")}}
            )
        rows = [of["rows"] for of in views if of["rows"] is not None]
        total = float(sum(rows)) if rows else None
        self._series.add(found["freshness_seconds"], total)
        levels = [problem.level for problem in problems]
        return {
            "name": self.name,
            "file": self.file,
            "level": "bad" if levels else "ok",
            "freshness_seconds": found["freshness_seconds"],
            "position": found.get("position"),
            "engine": found.get("engine"),
            "rows": total,
            "views": views,
            "problems": [problem.as_json() for problem in problems],
        }

    def series(self) -> dict[str, list[float | None]]:
        return self._series.as_json()


def _verified(config: ApplyConfig) -> dict[tuple[str, str], dict[str, Any]]:
    found: dict[tuple[str, str], dict[str, Any]] = registry.part("sinks.topics.records.verified:read_verified")(
        config.source.kafka(), config.name
    )
    return found
