"""Notes in an audit what was done beside a connector (to its topics, to its place in a fleet), or to an apply job.

In: Kafka's address, the connector's name and prefix, an act. Out: one record of the audit's topic, by itself. What a
connector does at a position is noted in the transaction in which it takes effect, and not here.
"""

from __future__ import annotations

import logging

from cdc.config.kafka_config import KafkaConfig
from cdc.model.audit import Act
from cdc.model.errors import CdcError
from sinks.client.failures import DRIVER_ERRORS, translate
from sinks.topics.names import job_audit_topic, log_topic
from sinks.topics.records.single_record import NoTopicError, NotTakenError, write_record
from sinks.topics.topics import Topics, Wanted

_WITHIN_S = 15.0

log = logging.getLogger("cdc")


def note(config: KafkaConfig, prefix: str, connector: str, act: Act) -> bool:
    """Return whether it is noted; not where there is no audit yet, because the connector has never run there.

    What is noted was done, or is being done: brokers that do not take the note are told of in a warning.
    """
    return _note(config, log_topic(prefix, connector, "audit"), connector, act)


def note_of_job(config: KafkaConfig, job: str, act: Act) -> bool:
    """The same of what was done to an apply job, whose audit is made with its first note."""
    topic = job_audit_topic(config.prefix, job)
    try:
        with Topics(config.bootstrap_servers, config.options) as topics:
            missing = topics.check([Wanted.log(topic, 1, {"retention.ms": "-1"})])
            topics.create(missing, replication_factor=config.replication_factor)
    except CdcError as exc:
        return _is_not_noted(act, topic, exc.message)
    return _note(config, topic, job, act)


def _note(config: KafkaConfig, topic: str, name: str, act: Act) -> bool:
    try:
        record = act.to_bytes(connector=name, position="")
        write_record(config, topic, name.encode(), record, within_s=_WITHIN_S)
    except NoTopicError:
        return False
    except NotTakenError as exc:
        return _is_not_noted(act, topic, f"the brokers do not take it ({exc}): this user needs WRITE there")
    except DRIVER_ERRORS as exc:
        return _is_not_noted(act, topic, translate(exc, config.bootstrap_servers, "writing to it").message)
    return True


def _is_not_noted(act: Act, topic: str, why: str) -> bool:
    log.warning("%s is not noted in the audit, topic %s: %s", act.action, topic, why)
    return False
