"""Which tests run in one worker after another, and which of these shards are begun first.

A server started for one file serves the next, a JVM that is warm stays so: files that need the same servers are kept
together, in shards of some minutes each. `tests/durations.json` has what each file took (seconds of a whole run by
`pytest --write-durations`); the longest shard is begun first, so that no worker is left with a long one at the end,
and a worker goes on with what needs the servers that it has. The same file has what each full test took, by its name:
`make test-all` writes it, and `tests/pushes.py` asks for it.
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

DURATIONS: Final = Path(__file__).with_name("durations.json")
_SHARD_S: Final = 240.0
"""What a shard of files with the same servers comes to, at most, where it has more than one file."""
_UNKNOWN_S: Final = 5.0

_SPARK: Final = ("tests/stores/", "tests/property/test_history.py")
_MYSQL: Final = ("tests/integration/test_mysql_", "tests/cases/test_mysql.py")
_POSTGRES: Final = ("tests/integration/", "tests/cases/", "tests/conformance/")


def _servers(file: str) -> str:
    """What the file's tests start; the file itself where it shares nothing."""
    for name, beginnings in (("spark", _SPARK), ("mysql", _MYSQL), ("postgres", _POSTGRES)):
        if file.startswith(beginnings):
            return name
    return file


def shards(files: Iterable[str], durations: Mapping[str, float]) -> dict[str, str]:
    """The name of each file's shard; the longest shard comes first, and in it the longest file."""
    took = {file: durations.get(file, _UNKNOWN_S) for file in files}
    alike: dict[str, list[str]] = defaultdict(list)
    for file in sorted(took, key=lambda file: (-took[file], file)):
        alike[_servers(file)].append(file)
    made: dict[str, list[str]] = {}
    for name, members in alike.items():
        count = max(1, round(sum(took[file] for file in members) / _SHARD_S))
        parts: list[list[str]] = [[] for _ in range(min(count, len(members)))]
        for file in members:
            min(parts, key=lambda part: sum(took[each] for each in part)).append(file)
        made.update({f"{name} {number}": part for number, part in enumerate(parts, start=1)})
    order = sorted(made, key=lambda name: (-sum(took[file] for file in made[name]), name))
    return {file: name for name in order for file in made[name]}


def next_of(
    waiting: Iterable[str], seconds: Mapping[str, float], mine: Iterable[str], others: Iterable[Iterable[str]]
) -> str:
    """Which of the shards that wait, the longest first, a worker begins that had `mine`, and other workers theirs.

    One that needs what this worker has started already: a JVM of Spark, cold, takes as much CPU as a minute of tests,
    and the second MySQL as much as the first. Else one of what has the most work left for each that would share it.
    """
    queue, known = list(waiting), {_kind(name) for name in mine}
    left: dict[str, float] = defaultdict(float)
    for name in queue:
        left[_kind(name)] += seconds[name]
    held = Counter(kind for theirs in others for kind in {_kind(name) for name in theirs})
    wanted = known & left.keys() or {max(left, key=lambda kind: left[kind] / (held[kind] + 1))}
    return next(name for name in queue if _kind(name) in wanted)


def _kind(shard: str) -> str:
    return shard.rpartition(" ")[0]


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def known_durations() -> dict[str, float]:
    found: dict[str, float] = json.loads(DURATIONS.read_text())
    return found


def scheduler(config: pytest.Config, log: Any) -> Any:
    """The scheduler of pytest-xdist whose units are shards, in the order of the collection."""
    from xdist.scheduler import LoadScopeScheduling

    class ByShard(LoadScopeScheduling):
        def schedule(self) -> None:
            if self.collection is None:
                first = next(iter(self.registered_collections.values()))
                durations = known_durations()
                self._shards = shards({file_of(nodeid) for nodeid in first}, durations)
                self._seconds: dict[str, float] = defaultdict(float)
                for file, shard in self._shards.items():
                    self._seconds[shard] += durations.get(file, _UNKNOWN_S)
            super().schedule()

        def _assign_work_unit(self, node: Any) -> None:
            others = (shards for other, shards in self.assigned_work.items() if other is not node)
            chosen = next_of(self.workqueue, self._seconds, self.assigned_work.get(node, ()), others)
            self.workqueue.move_to_end(chosen, last=False)
            super()._assign_work_unit(node)

        def _split_scope(self, nodeid: str) -> str:
            return self._shards[file_of(nodeid)]

    config.option.loadscopereorder = False  # by number of tests; ours are ordered by time
    return ByShard(config, log)


class Recorder:
    """Writes what was taken when the run is over: by each file in what a push runs, or by each full test in `full`."""

    def __init__(self, path: Path, *, full: bool) -> None:
        self._path = path
        self._full = full
        self._took: defaultdict[str, float] = defaultdict(float)
        self._failed: set[str] = set()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if ("full" in report.keywords) != self._full:
            return
        name = report.nodeid if self._full else file_of(report.nodeid)
        self._took[name] += report.duration
        if self._full and not report.passed:
            self._failed.add(name)

    def pytest_sessionfinish(self) -> None:
        known = json.loads(self._path.read_text()) if self._path.exists() else {}
        kept = {name: seconds for name, seconds in known.items() if self._full or "::" in name}
        seen = {
            name: round(seconds, 1)
            for name, seconds in self._took.items()
            if name not in self._failed and (self._full or seconds >= 1)
        }
        self._path.write_text(json.dumps(dict(sorted({**kept, **seen}.items())), indent=1) + "\n")
