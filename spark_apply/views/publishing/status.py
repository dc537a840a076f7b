"""Says where a view job stands: its position from Kafka, the rest from what the job has noted beside its state."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from cdc.config import registry
from cdc.config.kafka_config import KafkaConfig
from cdc.config.views import ViewsConfig, engine_of
from cdc.model.change import Table
from cdc.model.state import State
from spark_apply.events.kafka.topics import existing_topics, position_topic
from spark_apply.model.completeness import position_of
from spark_apply.views.embedded.state import out_of_reach
from spark_apply.views.planning.definitions import published
from spark_apply.views.planning.view import relation_of

_NOTE = "status.json"


def note_status(
    folder: Path, views: Mapping[str, Mapping[str, object]], unreadable: Mapping[str, int], *, engine: str
) -> None:
    """Write what a job knows of its views, for others to read: no row and no key is in it.

    `unreadable` says by stream of others how many records were no events of it.
    """
    made = folder / f"{_NOTE}.new"
    streams = {name: {"unreadable": number} for name, number in unreadable.items()}
    try:
        made.write_text(json.dumps({"engine": engine, "views": views, "streams": streams}, sort_keys=True))
        made.rename(folder / _NOTE)
    except OSError as exc:
        raise out_of_reach(folder, exc.strerror or type(exc).__name__) from exc


def noted(config: ViewsConfig) -> dict[str, Any]:
    """Return what a job on this machine has noted last; ``views`` has what it knows of each.

    A note that a crash of the machine has cut is none: the next step writes it again.
    """
    note = Path(config.state) / _NOTE
    try:
        found = json.loads(note.read_text()) if note.is_file() else {}
    except ValueError:
        return {}
    except OSError as exc:
        raise out_of_reach(note.parent, exc.strerror or type(exc).__name__) from exc
    return found if isinstance(found, dict) else {}


def sink_config(config: ViewsConfig) -> KafkaConfig:
    """Return how the views' topics are written."""
    return KafkaConfig(
        bootstrap_servers=config.source.bootstrap_servers,
        topic_prefix=config.source.topic_prefix,
        partitions=config.sink.partitions,
        replication_factor=config.sink.replication_factor,
        transaction_timeout_s=config.sink.transaction_timeout_s,
        options=config.source.options,
    )


def peeked(config: ViewsConfig) -> State | None:
    """Return where the view job stands; None before its first transaction. Raises OperatorError for what is damaged."""
    topic = position_topic(config.source.topic_prefix, config.name)
    if topic not in existing_topics(config.source, [topic]):
        return None
    with closing(registry.sink(sink_config(config), config.name)) as sink:
        found: State | None = sink.peek()
    return found


def view_status(config: ViewsConfig) -> dict[str, Any]:
    """Return the stable JSON of ``cdc view status --json``. Raises OperatorError if Kafka does not answer."""
    state = peeked(config)
    definitions = published(state)
    with closing(registry.sink(sink_config(config), config.name)) as sink:
        topics = {name: sink.topic(Table("view", name, (), ())) for name in config.views}
    found = noted(config)
    known: dict[str, Any] = found.get("views", {})
    fresh = None
    if state is not None and state.source_ms:
        fresh = round(max(0.0, time.time() - state.source_ms / 1000), 1)
    return {
        "name": config.name,
        "position": position_of(state) if state is not None else None,
        "freshness_seconds": fresh,
        "engine": found.get("engine", engine_of(config)),
        "streams": {name: found.get("streams", {}).get(name, {"unreadable": None}) for name in config.streams},
        "views": {
            name: {
                "topic": topic,
                "generation": definitions[name].generation if name in definitions else None,
                "rows": known.get(name, {}).get("rows"),
                "computed": known.get(name, {}).get("computed"),
                "quarantined": known.get(name, {}).get("quarantined"),
                "late": known.get(name, {}).get("late"),
                "stopped": known.get(name, {}).get("stopped"),
                "published": state is not None and relation_of(name) in state.tables,
            }
            for name, topic in topics.items()
        },
    }
