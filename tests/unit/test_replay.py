"""A replay has a name, a checkpoint and copies of its own, whatever its file says, or it is refused."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, TopicPartition
from hypothesis import given
from hypothesis import strategies as st

from cdc.cli.running.replay import since_of
from cdc.config.apply_config import ApplySource, ApplyTable, StoreConfig
from cdc.config.config import ApplyConfig
from cdc.config.metrics_config import MetricsConfig
from cdc.model.change import Position
from cdc.model.errors import ConfigError, OperatorError
from spark_apply.job.start import Start
from spark_apply.model.target_table import choose
from spark_apply.replay.beside import beside, copy_of
from spark_apply.replay.span import _since

NOW = dt.datetime(2026, 3, 2, 12, 0, tzinfo=dt.UTC)
NAMES = st.from_regex(r"[a-z][a-z0-9_-]{0,8}", fullmatch=True)
TABLES = st.lists(
    st.sampled_from(["public.a", "public.a_r", "public.a_history", "public.a_history_r", "other.a", "public.b"]),
    min_size=1, unique=True,
)  # fmt: skip


def _config(tables: dict[str, ApplyTable], stores: dict[str, StoreConfig] | None = None) -> ApplyConfig:
    return ApplyConfig(
        name="live",
        source=ApplySource(bootstrap_servers="h:1", topic_prefix="shop"),
        stores=stores or {"s": StoreConfig(type="tantivy", path="./search")},
        tables=tables,
        checkpoint="./checkpoint/",
        metrics=MetricsConfig(listen="127.0.0.1:9187"),
    )


@given(TABLES, st.sets(st.integers(0, 5)), NAMES)
def test_no_copy_of_a_replay_is_one_of_the_live_job(known: list[str], histories: set[int], name: str) -> None:
    """Names as they come: it is refused, or every copy is another one, in every store, and each of one table."""
    config = _config(
        {
            table: ApplyTable(stores=("s",), mode="history" if number in histories else "latest")
            for number, table in enumerate(known)
        }
    )
    live = {(table.partition(".")[0], copy_of(table, of)) for table, of in choose(config.tables, known).items()}
    try:
        made = beside(config, name, known)
    except ConfigError:
        return
    copies = [(table.partition(".")[0], copy_of(table, of)) for table, of in made.tables.items()]
    assert not live & set(copies)
    assert len(set(copies)) == len(copies) == len(known)
    assert (made.name, made.checkpoint) == (f"live-AS-{name}", f"./checkpoint-{name}"), "no job has such a name"
    assert made.metrics.listen is None, "the live job has the port"
    assert made.stores == config.stores


@pytest.mark.parametrize(
    ("config", "name", "said"),
    [
        (_config({"public.a": ApplyTable(stores=("s",))}), "live", "that is the job itself"),
        (_config({"public.*": ApplyTable(stores=("s",))}), "r", "would be called a_r, which is another table's"),
        (
            _config({"public.a": ApplyTable(stores=("s",))}, {"s": StoreConfig(type="acme.store:open_store")}),
            "r",
            "keeps copies of two names apart is not known",
        ),
    ],
)
def test_what_is_refused(config: ApplyConfig, name: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        beside(config, name, ["public.a", "public.a_r"])


def test_two_copies_of_one_name_are_refused() -> None:
    both = {"public.a": ApplyTable(stores=("s",), target="x"), "public.b": ApplyTable(stores=("s",), target="X")}
    with pytest.raises(ConfigError, match="would both be called"):
        beside(_config(both), "r", ["public.a", "public.b"])


def test_what_a_file_says_of_a_table_stays() -> None:
    settings = ApplyTable(stores=("s",), where="id > 1", rename={"a": "b"}, target="sales")
    made = beside(_config({"public.a": settings}), "q-1", ["public.a"])
    assert made.tables["public.a"] == replace(settings, target="sales_q_1")


@pytest.mark.parametrize(
    ("text", "since"),
    [
        ("24h", NOW - dt.timedelta(hours=24)),
        ("7d", NOW - dt.timedelta(days=7)),
        ("2026-03-01T06:00:00Z", dt.datetime(2026, 3, 1, 6, tzinfo=dt.UTC)),
        ("2026-03-01T08:00:00+02:00", dt.datetime(2026, 3, 1, 6, tzinfo=dt.UTC)),
        ("00000001.000000000000000a.00000002", Position(1, 10, 2)),
        ("shop:00000001.000000000000000a.00000002", Position(1, 10, 2)),
    ],
)
def test_where_a_replay_begins(text: str, since: dt.datetime | Position) -> None:
    assert since_of(text, NOW) == since


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("yesterday", "no time and no position"),
        ("99999d", "no time and no position|still to come"),
        ("2026-03-01T06:00:00", r"does not say of which zone it is\n.*--from 2026-03-01T06:00:00\+00:00, for UTC"),
        ("2026-03-01", r"does not say of which zone it is\n.*--from 2026-03-01T00:00:00\+00:00, for UTC"),
        ("2026-03-03T06:00:00Z", "still to come"),
        ("00000001.0a.02", "no time and no position"),
    ],
)
def test_no_beginning(text: str, said: str) -> None:
    if text == "99999d":
        text = "99999999h"
        assert isinstance(since_of("99999d", NOW), dt.datetime)
    with pytest.raises(ConfigError, match=said):
        since_of(text, NOW)


def test_a_replay_that_begins_has_no_rows_of_another_one() -> None:
    """Its checkpoint alone was removed, or another name gives the same copies: r-1 and r_1."""
    start = Start(*[cast("Any", None)] * 6)
    orders: Any = SimpleNamespace(topic="t", qualified="public.orders", schema="public", copy_name="orders_r_1")
    start.held = {("t", "s"): {}}
    start._require_unfilled([(orders, "s")])
    start.held = {("t", "s"): {0: 7}}
    with pytest.raises(OperatorError, match=r"the copy public\.orders_r_1 has rows already") as refused:
        start._require_unfilled([(orders, "s")])
    assert "another name" in (refused.value.hint or "")


def test_what_is_older_than_the_clock_is_asked_for_from_the_beginning() -> None:
    """A broker answers a time before 1970 with an error, as if it could not be asked."""
    asked = list[int]()

    class Broker:
        def offsets_for_times(self, times: list[TopicPartition], timeout: float) -> list[TopicPartition]:
            asked.extend(at.offset for at in times)
            return [TopicPartition(at.topic, at.partition, 3) for at in times]

    assert _since(cast("Consumer", Broker()), -1, {("t", 0): (3, 9)}) == {("t", 0): 3}
    assert asked == [0]
