"""Which tests run in one worker after another, and which of these shards are begun first.

A server started for one file serves the next, a JVM that is warm stays so: files that need the same servers are kept
together, in shards of some minutes each. `tests/durations.json` has what each file took (seconds of a whole run by
`pytest --write-durations`); the longest shard is begun first, so that no worker is left with a long one at the end.
"""

from __future__ import annotations

import json
from collections import defaultdict
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
                self._shards = shards({file_of(nodeid) for nodeid in first}, known_durations())
            super().schedule()

        def _split_scope(self, nodeid: str) -> str:
            return self._shards[file_of(nodeid)]

    config.option.loadscopereorder = False  # by number of tests; ours are ordered by time
    return ByShard(config, log)


class Recorder:
    """Writes what each file took when the run is over."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._took: defaultdict[str, float] = defaultdict(float)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._took[file_of(report.nodeid)] += report.duration

    def pytest_sessionfinish(self) -> None:
        took = {file: round(seconds, 1) for file, seconds in sorted(self._took.items()) if seconds >= 1}
        self._path.write_text(json.dumps(took, indent=1) + "\n")
