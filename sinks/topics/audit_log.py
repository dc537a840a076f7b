"""Notes in a connector's audit what was done beside it: to its topics on the brokers, or to its place in a fleet.

In: Kafka's address, the connector's name and prefix, an act. Out: one record of the audit's topic, by itself. What a
connector does at a position is noted in the transaction in which it takes effect, and not here.
"""

from __future__ import annotations

import logging

from cdc.config.kafka_config import KafkaConfig
from cdc.model.audit import Act
from sinks.client.failures import DRIVER_ERRORS, translate
from sinks.topics.names import log_topic
from sinks.topics.single_record import NoTopicError, NotTakenError, write_record

_WITHIN_S = 15.0

log = logging.getLogger("cdc")


def note(config: KafkaConfig, prefix: str, connector: str, act: Act) -> bool:
    """Return whether it is noted; not where there is no audit yet, because the connector has never run there.

    What is noted was done, or is being done: brokers that do not take the note are told of in a warning.
    """
    topic = log_topic(prefix, connector, "audit")
    try:
        record = act.to_bytes(connector=connector, position="")
        write_record(config, topic, connector.encode(), record, within_s=_WITHIN_S)
    except NoTopicError:
        return False
    except NotTakenError as exc:
        why = f"the brokers do not take it ({exc}): this user needs WRITE there"
    except DRIVER_ERRORS as exc:
        why = translate(exc, config.bootstrap_servers, "writing to it").message
    else:
        return True
    log.warning("%s is not noted in the audit, topic %s: %s", act.action, topic, why)
    return False
