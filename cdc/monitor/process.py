"""Asks a process for its metrics at the address of its file: what it does now, and how much it has done."""

from __future__ import annotations

import urllib.request
from dataclasses import dataclass
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from cdc.config.metrics_config import MetricsConfig
from cdc.model.errors import RetryableError

_ANSWER_S: Final = 2.0
_LARGEST: Final = 20_000_000
_EVERYWHERE: Final = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - what is listened on, to be asked


@dataclass(frozen=True, slots=True)
class Process:
    """What a process says of itself."""

    state: str | None
    events: float
    """Since it began."""


def ask(config: MetricsConfig, *, label: str, name: str) -> Process:
    """Return what the process says that has this name. Raises RetryableError where none answers there."""
    if config.address is None:
        raise RetryableError("the file has no address of metrics")
    host, port = config.address
    host = _EVERYWHERE.get(host, host)
    place = f"http://[{host}]:{port}/metrics" if ":" in host else f"http://{host}:{port}/metrics"
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(place, timeout=_ANSWER_S) as answer:
            text = answer.read(_LARGEST).decode(errors="replace")
        return parse(text, label=label, name=name)
    except (OSError, ValueError) as exc:
        raise RetryableError(f"no process answers at {config.listen}") from exc


def parse(text: str, *, label: str, name: str) -> Process:
    """Read the metrics of the process with this name; of any other process nothing is taken."""
    state: str | None = None
    events = 0.0
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.labels.get(label) != name:
                continue
            if sample.name in ("cdc_connector_state", "cdc_apply_state") and sample.value == 1:
                state = sample.labels.get("state")
            elif sample.name in ("cdc_source_events_total", "cdc_apply_events_total"):
                events += sample.value
    return Process(state, events)
