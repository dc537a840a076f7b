"""The monitor's own metrics: consumer groups, verification, and whether connectors run, as seen from outside."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from prometheus_client import CollectorRegistry
from prometheus_client.core import Metric as Family
from prometheus_client.registry import Collector

from cdc.monitor.burrow import Status, worst
from cdc.monitor.consumers import Consumers
from cdc.monitor.watched import Watched, WatchedConnector, WatchedJob
from cdc.telemetry.figures import Figures, Labels
from cdc.telemetry.metrics import OTHER, SEEN, VERIFIED

log = logging.getLogger("cdc")

MOST_PAIRS: Final = 200
"""So many pairs of group and topic of a connector have values of their own; all others are one."""


class MonitorFigures(Collector):
    """Gives the figures of everything that is watched, as one set of families."""

    def __init__(self, watched: Sequence[Watched]) -> None:
        self._connectors = [
            (of, Figures(SEEN, {"connector": of.name})) for of in watched if isinstance(of, WatchedConnector)
        ]
        self._jobs = [
            (of, Figures(VERIFIED, {"apply": of.name, "connector": of.config.source.topic_prefix}))
            for of in watched
            if isinstance(of, WatchedJob)
        ]
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)

    def collect(self) -> Iterator[Family]:
        for connector, of_connector in self._connectors:
            running = _at_work(connector)
            of_connector.replace("cdc_monitor_connector_running", {} if running is None else {(): float(running)})
            groups = connector.consumers()
            if groups is not None:
                tell_consumers(of_connector, groups)
        for job, of_job in self._jobs:
            _tell_verified(of_job, job)
        for figures in ([of for _, of in self._connectors], [of for _, of in self._jobs]):
            yield from _merged(figures)


def _at_work(connector: WatchedConnector) -> bool | None:
    try:
        return connector.at_work()
    except Exception as exc:  # noqa: BLE001 - contained, as on the page: the others are told
        log.debug("whether %s runs cannot be told: %s", connector.name, type(exc).__name__)
        return None


def tell_consumers(figures: Figures, found: Consumers) -> None:
    """Set what is known of groups and topics; of more than `MOST_PAIRS` the rest is one."""
    pairs = [((group.group, topic.topic), topic) for group in found.groups for topic in group.topics]
    records: dict[Labels, float] = {}
    seconds: dict[Labels, float] = {}
    statuses: dict[Labels, list[Status]] = {}
    for number, ((group, name), topic) in enumerate(pairs):
        at = (group, name) if number < MOST_PAIRS else (OTHER, OTHER)
        records[at] = records.get(at, 0) + topic.records
        if topic.seconds is not None:
            seconds[at] = max(seconds.get(at, 0.0), topic.seconds)
        statuses.setdefault(at, []).append(topic.status)
    figures.replace("cdc_consumer_lag_records", records)
    figures.replace("cdc_consumer_lag_seconds", seconds)
    figures.replace(
        "cdc_consumer_status",
        {(*at, status.value): float(status is worst(of)) for at, of in statuses.items() for status in Status},
    )


def _tell_verified(figures: Figures, job: WatchedJob) -> None:
    at: dict[Labels, float] = {}
    agreed: dict[Labels, float] = {}
    differing: dict[Labels, float] = {}
    never = set[Labels]()
    for (store, _), of in job.verified().items():
        place = (store,)
        at[place] = min(at.get(place, float("inf")), of["at_ms"] / 1000)
        differing[place] = differing.get(place, 0) + of["differing"]
        if of["agreed_ms"] is None:
            never.add(place)
        else:
            agreed[place] = min(agreed.get(place, float("inf")), of["agreed_ms"] / 1000)
    figures.replace("cdc_verify_timestamp_seconds", at)
    figures.replace("cdc_verify_agreed_timestamp_seconds", {p: v for p, v in agreed.items() if p not in never})
    figures.replace("cdc_verify_differing_rows", differing)


def _merged(all_figures: Sequence[Figures]) -> Iterator[Family]:
    """Give each metric once, with the samples of all: a scrape may have no family twice."""
    families: dict[str, Family] = {}
    for figures in all_figures:
        for family in figures.collect():
            if family.name in families:
                families[family.name].samples.extend(family.samples)
            else:
                families[family.name] = family
    yield from families.values()
