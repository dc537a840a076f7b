"""Holds the values of metrics, and gives them to prometheus_client when they are asked for.

The loop's thread writes, the threads of scrapes read. Each write is one step of a dict, so no lock is held that a slow
scrape could make the loop wait for. What can be told from something that is held anyway is computed at a scrape.
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from cdc import __version__
from cdc.machine.temporary_files import temporary_bytes
from cdc.telemetry.metrics import MOST_TABLES, OTHER, Metric

Labels: TypeAlias = tuple[str, ...]
Values: TypeAlias = Mapping[Labels, float]

_FAMILIES: Final = {"gauge": GaugeMetricFamily, "counter": CounterMetricFamily}


class Tables:
    """Bounds the label of tables: the first ones met keep their names."""

    def __init__(self, most: int = MOST_TABLES) -> None:
        self._most = most
        self._known: dict[str, str] = {}

    def label(self, table: str) -> str:
        found = self._known.get(table)
        if found is None:
            if len(self._known) >= self._most:
                return OTHER
            found = self._known[table] = table.encode(errors="replace").decode()  # names of a SQL_ASCII database
        return found


class Histogram:
    """Counts values into buckets, many at once."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._state: tuple[tuple[int, ...], int, float] = ((0,) * len(bounds), 0, 0.0)

    def observe(self, up_to: Sequence[int], count: int, total: float) -> None:
        """Add `count` values that sum up to `total`, of which `up_to` are at most each bound."""
        counts, before, so_far = self._state
        self._state = (tuple(map(int.__add__, counts, up_to)), before + count, so_far + total)

    def observe_one(self, value: float) -> None:
        self.observe([value <= bound for bound in self._bounds], 1, value)

    def family(self, metric: Metric, labels: Mapping[str, str]) -> Family:
        counts, count, total = self._state
        family = HistogramMetricFamily(metric.name, metric.help, labels=[*labels])
        buckets = [(str(bound), many) for bound, many in zip(self._bounds, counts, strict=True)]
        family.add_metric([*labels.values()], [*buckets, ("+Inf", count)], sum_value=total)
        return family


def _temporary() -> Values:
    found = temporary_bytes()
    return {} if found is None else {(): found}


class Figures(Collector):
    """Holds the values of `metrics`, all with the same constant labels, under a registry of its own."""

    def __init__(self, metrics: Iterable[Metric], constant: Mapping[str, str]) -> None:
        self._metrics = {metric.name: metric for metric in metrics}
        self._constant = constant
        self._values: dict[str, dict[Labels, float]] = {name: {} for name in self._metrics}
        self._asked: dict[str, Callable[[], Values]] = {}
        self._histograms = {m.name: Histogram(m.bounds) for m in self._metrics.values() if m.kind == "histogram"}
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        if "cdc_build_info" in self._metrics:
            self.set("cdc_build_info", 1, __version__, platform.python_version())
            self.set("cdc_start_timestamp_seconds", time.time())
            self.ask("cdc_temporary_bytes", _temporary)

    def set(self, name: str, value: float, *labels: str) -> None:
        """Set one value."""
        self._values[name][labels] = value

    def add(self, name: str, more: float, *labels: str) -> None:
        """Add to one value."""
        of = self._values[name]
        of[labels] = of.get(labels, 0) + more

    def replace(self, name: str, values: Values) -> None:
        """Set all values of a metric; those it had before are gone."""
        self._values[name] = dict(values)

    def ask(self, name: str, values: Callable[[], Values]) -> None:
        """Have `values` called at each scrape. It must not wait, and is called on another thread."""
        self._asked[name] = values

    def histogram(self, name: str) -> Histogram:
        return self._histograms[name]

    def collect(self) -> Iterator[Family]:
        for name, metric in self._metrics.items():
            if metric.kind == "histogram":
                yield self._histograms[name].family(metric, self._constant)
                continue
            asked = self._asked.get(name)
            values = asked() if asked is not None else self._values[name].copy()
            family = _FAMILIES[metric.kind](name, metric.help, labels=[*self._constant, *metric.labels])
            for labels, value in values.items():
                family.add_metric([*self._constant.values(), *labels], value)
            yield family
