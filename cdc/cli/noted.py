"""Notes in an apply job's audit what a command has done to it, by whom: the job itself takes no commands."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from cdc.config import registry
from cdc.config.config import ApplyConfig
from cdc.model.audit import DONE, Act, asked_by
from cdc.model.errors import CdcError


def note(config: ApplyConfig, action: str, about: Mapping[str, Any], outcome: str = DONE) -> None:
    """Note it; where the brokers do not take it, a warning says so, and what was done is done."""
    act = Act(action=action, by=asked_by(), asked_ms=time.time_ns() // 1_000_000, about=about, outcome=outcome)
    registry.part("sinks.topics.records.audit_log:note_of_job")(config.source.kafka(), config.name, act)


@contextmanager
def noted(config: ApplyConfig, action: str) -> Iterator[dict[str, Any]]:
    """Note what the block does, which says more about it in what it is given; also that it has failed, part of it done.

    Names and counts alone are said, never a key.
    """
    about: dict[str, Any] = {}
    try:
        yield about
    except CdcError as exc:
        note(config, action, about, f"ended with {type(exc).__name__}")
        raise
    note(config, action, about)
