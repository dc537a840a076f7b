"""Asks a cluster for topics: in requests that it takes, as fast as its quotas let them through.

A controller with a quota (controller_mutation_rate) makes some of the topics of a request and refuses the others for
now. Those are asked for again; what is made stays, so the next session has fewer to ask for.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

from kafka.errors import (
    InvalidConfigurationError,
    InvalidPartitionsError,
    InvalidReplicationAssignmentError,
    InvalidReplicationFactorError,
    KafkaError,
    NoError,
    PolicyViolationError,
    ThrottlingQuotaExceededError,
    TopicAlreadyExistsError,
    for_code,
)

from cdc.model.errors import CdcError, OperatorError, RetryableError
from sinks.client.failures import translate
from sinks.client.patient_admin import PatientAdmin

log = logging.getLogger("cdc")

_MOST_CHANGES: Final = 1_000
"""Of the cluster's metadata by one request: a controller (KRaft) refuses one that makes more than 10,000, and a busy
broker needs milliseconds for each partition's folder and files."""
_READY_MS: Final = 60_000
_QUOTA_ASKED_S: Final = 1.0
"""How often topics are asked for again that the cluster's quota has not let through yet."""
_QUOTA_WAITED_S: Final = 60.0
"""So long at a time, in which nobody can stop the connector; the next session asks for those that are left."""
_CREATE: Final = "the connector's user needs CREATE on the cluster or on the topics’ prefix"
_REFUSALS: Final = (
    (
        (InvalidReplicationFactorError, InvalidReplicationAssignmentError),
        "sink.replication_factor: at most as many as there are brokers",
    ),
    (
        (PolicyViolationError, InvalidConfigurationError, InvalidPartitionsError),
        "sink.topic_config, sink.partitions and sink.replication_factor are what the cluster allows to be set",
    ),
)
"""What to do about a broker's refusal, by its kind."""


def ask_for(
    admin: PatientAdmin, servers: str, specs: Mapping[str, dict[str, Any]], *, validate_only: bool = False
) -> bool:
    """Ask for topics; return whether some were there already. Raises the broker's error about one it refuses."""
    others, done = False, 0
    for part in _requests(specs):
        others |= _ask_until_let(admin, servers, part, validate_only=validate_only)
        if not validate_only:
            admin.wait_for_topics(list(part), timeout_ms=_READY_MS)
            done += len(part)
            if len(part) < len(specs):
                log.info("%s of %s topics are made", f"{done:,}", f"{len(specs):,}")
    return others


def _requests(specs: Mapping[str, dict[str, Any]]) -> Iterator[dict[str, dict[str, Any]]]:
    """Cut what is to be made into requests that a controller takes."""
    part: dict[str, dict[str, Any]] = {}
    changes = 0
    for name, spec in specs.items():
        more = 1 + len(spec["configs"]) + int(spec["num_partitions"])
        if part and changes + more > _MOST_CHANGES:
            yield part
            part, changes = {}, 0
        part[name] = spec
        changes += more
    if part:
        yield part


def _ask_until_let(
    admin: PatientAdmin, servers: str, specs: Mapping[str, dict[str, Any]], *, validate_only: bool
) -> bool:
    """Ask for topics until the cluster's quota has let all of them through; return as `ask_for` does."""
    others, told, left, begun_s = False, False, dict(specs), time.monotonic()
    while True:
        answer = admin.create_topics(left, timeout_ms=30_000, validate_only=validate_only, raise_errors=False)
        held = set[str]()
        for topic in answer["topics"]:
            error = for_code(topic["error_code"])
            if error is TopicAlreadyExistsError:
                others = True
            elif error is ThrottlingQuotaExceededError:
                held.add(topic["name"])
            elif error is not NoError:
                raise error(f"{topic['name']}: {topic['error_message'] or error.description}")
        if not held or validate_only:  # they could be made: that takes a while
            return others
        waited_s = time.monotonic() - begun_s
        if waited_s > _QUOTA_WAITED_S:
            raise ThrottlingQuotaExceededError
        if not told:
            told = True
            log.warning("Kafka at %s: a quota of the cluster (controller_mutation_rate) holds up the making of "
                        "topics: it is waited for", servers)  # fmt: skip
        left = {name: spec for name, spec in left.items() if name in held}
        time.sleep(_QUOTA_ASKED_S)


def cannot_make(exc: Exception, servers: str) -> CdcError:
    """Return what it means that topics could not be made."""
    if isinstance(exc, ThrottlingQuotaExceededError):
        return RetryableError(
            f"Kafka at {servers}: a quota of the cluster lets no more topics be made for now",
            hint="those that are made stay: it goes on with the others; or raise controller_mutation_rate of this "
            "user or client.id (kafka-configs.sh)",
            at_start=True,
        )
    passing = translate(exc, servers, "making topics")
    if isinstance(passing, RetryableError) and (not isinstance(exc, KafkaError) or exc.retriable):
        return passing
    return OperatorError(
        f"Kafka at {servers}: topics cannot be made: {exc}",
        hint=next((hint for kinds, hint in _REFUSALS if isinstance(exc, kinds)), _CREATE),
    )
