"""The search server on a real broker."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from opensearchpy import OpenSearch
from pyspark.sql import SparkSession

from cdc.config.apply_config import ApplyTable, StoreConfig
from cdc.model.change import Kind
from cdc.model.errors import OperatorError, RetryableError
from cdc.model.state import Phase
from spark_apply.events.projection import projected_table
from spark_apply.events.quarantine import read_entries
from spark_apply.model.completeness import NEW, Mark
from spark_apply.model.store import Due
from spark_apply.model.target_table import Version
from spark_apply.rebuild.quarantine_retry import run_retry
from spark_apply.rebuild.rebuild import run_rebuild
from spark_apply.stores.opensearch.bulk import Action, Bulk, Patience, version
from spark_apply.stores.opensearch.failures import translated
from spark_apply.stores.opensearch.store import OpenSearchStore, open_store
from tests.spark.laws import Law, Record, Setting, applied_kinds, forget_the_last_commit, laws_of, order
from tests.spark.records import SourceTable, position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread

DURABILITY = "index.translog.durability"


@pytest.fixture
def setting(apply_spark: SparkSession, kafka: str, opensearch: str, tmp_path: Path) -> Setting:
    config = StoreConfig(type="opensearch", url=opensearch, options={"shards": 1, "replicas": 0})
    setting = Setting(apply_spark, kafka, tmp_path, lambda _path: config)
    setting.backup = lambda table: _kept(setting, opensearch, table)
    return setting


def _kept(setting: Setting, url: str, table: SourceTable) -> Callable[[], None]:
    """An index restored from a snapshot has its name and its alias, and another unique id."""
    client = OpenSearch(url)
    alias = _store(setting).index(setting.target(table))
    (index,) = client.indices.get_alias(name=alias)
    client.indices.refresh(index=index)

    def clone(source: str, to: str) -> None:
        client.indices.put_settings(index=source, body={"index.blocks.write": True})
        client.indices.clone(index=source, target=to, body={"settings": {"index.blocks.write": None}})
        client.indices.put_settings(index=source, body={"index.blocks.write": None})

    clone(index, f"kept-{index}")

    def restore() -> None:
        client.indices.delete(index=index)
        clone(f"kept-{index}", index)
        client.indices.put_alias(index=index, name=alias)
        client.close()

    return restore


def _store(setting: Setting) -> OpenSearchStore:
    return open_store(setting.store(setting.folder), name="copy", prefix=setting.prefix, spark=setting.spark)


@pytest.mark.parametrize("law", laws_of("opensearch"))
def test_law(law: Law, setting: Setting) -> None:
    law(setting)


def test_every_kind_is_kept_and_found(setting: Setting, opensearch: str) -> None:
    table, records = applied_kinds(setting)
    assert setting.contents(table) == setting.folded(table, records)
    store, made = _store(setting), setting.target(table)
    assert store.position(made) == position(10 + 4)
    with pytest.raises(OperatorError, match="column c_texts: it is array<string> and would have to be string"):
        store.open(setting.target(table, {"c_texts": "string"}))
    client = OpenSearch(opensearch)

    def hits(query: dict[str, object]) -> int:
        return int(client.count(index=store.index(made), body={"query": query})["count"])

    assert hits({"match": {"c_string": "umbrella"}}) == 1
    assert hits({"term": {"c_boolean": True}}) == 1
    assert hits({"range": {"c_date": {"gte": "2024-02-29", "lte": "2024-02-29"}}}) == 1
    assert hits({"range": {"c_decimal": {"gte": 1234, "lte": 1235}}}) == 1
    client.indices.put_settings(index=store.index(made), body={"index.max_result_window": 2})
    assert setting.contents(table) == setting.folded(table, records)
    client.indices.delete(index=f"{store.index(made)}.*")
    setting.apply()  # an index that was lost is filled again
    assert setting.contents(table) == setting.folded(table, records)


@pytest.mark.full  # it is about an index's first second
def test_a_reader_waits_for_an_index_that_has_just_been_made(setting: Setting, opensearch: str) -> None:
    """As long as it has no shard that is ready; where that lasts, it is told."""
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    publisher.stand(Phase.STREAM, 20, [table], table.event("c", order(1), position(10)))
    setting.apply()
    store, made, client = _store(setting), setting.target(table), OpenSearch(opensearch)
    index, routing = store._notes.index, "index.routing.allocation.enable"
    client.indices.delete(index=index)
    client.indices.create(index=index, body={"settings": {routing: "none"}}, wait_for_active_shards="0")
    ready = threading.Timer(0.8, client.indices.put_settings, kwargs={"index": index, "body": {routing: "all"}})
    ready.start()
    assert store.mark(made) is None
    ready.join()
    client.indices.delete(index=index)
    client.indices.create(index=index, body={"settings": {routing: "none"}}, wait_for_active_shards="0")
    with pytest.raises(OperatorError, match="no_shard_available"):
        store.mark(made)


def test_versions_order_transactions() -> None:
    in_order = [position(1, 5), position(2, 1), position(2**52 - 1, 9), position(1, 1, epoch=2)]
    assert sorted(in_order, key=version) == in_order
    assert version(position(7, 1)) == version(position(7, 2))
    assert version(position(2**52 - 1, 9, epoch=2**11 - 1)) < 2**63
    with pytest.raises(OperatorError, match="beyond what an index version can hold"):
        version(position(2**52))


@pytest.mark.full  # test_documents_that_opensearch_refuses_and_blocks_that_pass
def test_a_document_that_the_server_refuses_blocks_its_own_key(setting: Setting, opensearch: str) -> None:
    """A mapping that another hand has made; in an index without it, which a rebuild makes, the document is taken."""
    table, publisher = setting.table(columns={"id": {"kind": "int64"}, "code": {"kind": "string"}}), setting.publisher()
    publisher.create([table], partitions=1)

    def change(number: int, text: str, at: int) -> list[Record]:
        return table.event("u", {"id": number, "code": text}, position(at))

    def refused() -> dict[str | None, str]:
        return {entry.key: entry.reason for entry in read_entries(setting.config()).values()}

    taken = [*change(1, "11", 10), *change(2, "12", 11)]
    publisher.stand(Phase.STREAM, 11, [table], taken)
    setting.apply()
    own = {"keyword": {"type": "keyword", "ignore_above": 256}, "number": {"type": "integer"}}
    integer = {"properties": {"code": {"type": "text", "fields": own}}}
    OpenSearch(opensearch).indices.put_mapping(index=_store(setting).index(setting.target(table)), body=integer)
    bad, more = [*change(1, "no number 4711", 12), *change(2, "none either", 13)], change(3, "13", 14)
    publisher.stand(Phase.STREAM, 14, [table], [*bad, *more])
    count = setting.apply().tables[table.qualified]["copy"]
    assert (count.quarantined, count.written) == (2, 1)
    assert setting.contents(table) == setting.folded(table, [*taken, *more])
    reason = "OpenSearch does not take it: mapper_parsing_exception"
    assert refused() == {'{"id":1}': reason, '{"id":2}': reason}
    forget_the_last_commit(setting.folder / "checkpoints")
    assert setting.apply().batches == 1
    assert refused() == {'{"id":1}': reason, '{"id":2}': reason}
    assert [one.outcome for one in run_retry(setting.config(), key="1")] == ["left"]
    newer = change(2, "14", 15)
    publisher.publish(newer)
    setting.apply()
    assert refused() == {'{"id":1}': reason}
    publisher.publish(change(3, "no number", 16))
    with pytest.raises(OperatorError, match=r"store copy does not take an event .* mapper_parsing_exception"):
        setting.apply(setting.config(limit=1))
    run_rebuild(setting.config())
    assert refused() == {}
    everything = [*taken, *bad, *more, *newer, *change(3, "no number", 16)]
    assert setting.contents(table) == setting.folded(table, everything)


@pytest.mark.parametrize(
    "block",
    [
        "index.blocks.read_only",
        "index.blocks.write",
        "index.blocks.metadata",
        "cluster.blocks.read_only",
        "cluster.blocks.read_only_allow_delete",
    ],
)
def test_a_block_that_somebody_has_set_is_lifted_as_the_hint_says(
    block: str, opensearch: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """OpenSearch lifts none of these by itself, whatever room its disks have."""
    monkeypatch.setattr(time, "sleep", lambda _s: None)
    client, index = OpenSearch(opensearch), f"blocked-{time.time_ns()}"
    client.indices.create(index=f"{index}.1", body={"aliases": {index: {}}})
    bulk = Bulk(client, index, Patience())

    def write() -> None:
        with translated("it cannot be looked at"):
            client.indices.get_mapping(index=index)
        assert list(bulk.send([Action(b'{"index": {"_id": "1"}}', b"{}", 0, 0)])) in (
            [("index", 201)],
            [("index", 200)],
        )

    def lift(at: str, body: str) -> None:
        client.transport.perform_request("PUT", at, body=json.loads(body))

    write()
    for kept in ("persistent", "transient") if block.startswith("cluster.") else ("",):
        if kept:
            client.cluster.put_settings(body={kept: {block: True}})
        else:
            client.indices.put_settings(index=index, body={block: True})
        try:
            with pytest.raises(RetryableError, match=r"\(api\)") as told:
                write()
            asked = re.search(r"curl -X PUT '<url>(\S+)' .* -d '(.*)' lifts it", told.value.hint or "")
            assert asked, told.value.hint
            lift(asked[1], asked[2].replace("persistent", kept))
            write()
        finally:
            if kept:  # or the server would take nothing of other tests
                lift("/_cluster/settings", json.dumps({kept: {block: None}}))
    client.close()


def test_an_index_of_a_stranger_that_is_blocked_stops_no_copy(opensearch: str) -> None:
    """A request for an alias by its name alone is one for all indexes of the server."""
    client, theirs, prefix = OpenSearch(opensearch), f"theirs-{time.time_ns()}", f"p{time.time_ns()}"
    client.indices.create(index=theirs, body={"settings": {"index.blocks.metadata": True}})
    try:
        config = StoreConfig(type="opensearch", url=opensearch)
        store = open_store(config, name="copy", prefix=prefix, spark=None)
        version_1 = Version(prefix, "public", "orders", f"{prefix}.t", 1, ("id",), (("id", Kind("int64")),))
        table = projected_table([version_1], ApplyTable(stores=("copy",)))
        assert store.foresee(table).identity is None
        store.open(table)
        assert store.foresee(table).identity == store.open(table)
        store.beside(table)
        store.swap(table, Due("due", {}))
        assert store.previous(table) is not None
        store.roll_back(table, Due("due", {}))
        assert store.previous(table) is None
        store.close()
    finally:
        client.indices.put_settings(index=theirs, body={"index.blocks.metadata": None})
        client.close()


def test_a_mark_is_of_what_a_crash_of_the_server_leaves(opensearch: str) -> None:
    """Another hand has given the index another durability: what the server has taken is on its disk before the mark."""
    client, prefix = OpenSearch(opensearch), f"p{time.time_ns()}"
    store = open_store(StoreConfig(type="opensearch", url=opensearch), name="copy", prefix=prefix, spark=None)
    version_1 = Version(prefix, "public", "orders", f"{prefix}.t", 1, ("id",), (("id", Kind("int64")),))
    table = projected_table([version_1], ApplyTable(stores=("copy",)))
    store.open(table)
    alias = store.index(table)
    client.indices.put_settings(index=alias, body={DURABILITY: "async", "index.translog.sync_interval": "1h"})
    client.index(index=alias, id="1", body={"id": 1})

    def flushed() -> int:
        return int(client.indices.stats(index=alias, metric="flush")["_all"]["primaries"]["flush"]["total"])

    before = flushed()
    store.set_mark(table, Mark({0: 1}, None))
    assert flushed() == before + 1
    store.close()
    client.close()


def test_an_index_whose_name_is_taken_by_another_of_ours(opensearch: str) -> None:
    """One that a rebuild has left as the previous copy, or that somebody has taken the alias off: another is made.

    What the server says against one is told, and no rebuild advised, which could make none either.
    """
    client, prefix = OpenSearch(opensearch), f"own{time.time_ns()}"
    config = StoreConfig(type="opensearch", url=opensearch, options={"shards": 1, "replicas": 0})
    store = open_store(config, name="copy", prefix=prefix, spark=None)
    version = Version(prefix, "public", "orders", f"{prefix}.public.orders", 1, ("id",), (("id", Kind("int64")),))
    table = projected_table([version], ApplyTable(stores=("copy",)))
    alias = store.index(table)
    store.open(table)
    template = {"index_patterns": [f"{prefix}*"], "template": {"settings": {DURABILITY: "async"}}}
    client.indices.put_index_template(name=prefix, body=template)
    mine = f"{alias}.before-the-move"  # a clone, say
    client.indices.create(index=mine)
    store.beside(table)
    store.beside(table)  # which removes what a killed rebuild has left, and no other's
    assert client.indices.exists(index=mine)
    assert len(client.indices.get_alias(index=f"{alias}.*")) == 3
    store.swap(table, Due("rebuilt", {0: 3}))
    client.indices.delete(index=next(iter(client.indices.get_alias(name=alias))))
    store.open(table)
    assert store.mark(table) == NEW
    store.set_mark(table, Mark({0: 7}, None))
    (index,) = client.indices.get_alias(name=alias)
    client.indices.delete_alias(index=index, name=alias)
    store.open(table)
    assert store.mark(table) == NEW, "another index, which has nothing yet"
    (other,) = client.indices.get_alias(name=alias)
    assert other != index
    assert client.indices.get_settings(index=other, flat_settings=True)[other]["settings"][DURABILITY] == "request"
    client.indices.delete(index=f"{alias}.*")
    limits = {"persistent": {"cluster.max_shards_per_node": 1}}
    client.cluster.put_settings(body=limits)
    try:
        with pytest.raises(OperatorError, match=r"cannot hold public\.orders .*maximum shards open") as told:
            store.open(table)
    finally:
        client.cluster.put_settings(body={"persistent": dict.fromkeys(limits["persistent"])})
    assert "rebuild" not in (told.value.hint or "")
    store.open(table)
    store.close()


def test_what_others_do_with_the_alias(setting: Setting, opensearch: str) -> None:
    """A filter hides no document from us; a routing, and a closed index, are told with what undoes them."""
    options = {"shards": 3, "replicas": 0}
    setting.store = lambda _path: StoreConfig(type="opensearch", url=opensearch, options=options)
    table, publisher, client = setting.table(), setting.publisher(), OpenSearch(opensearch)
    publisher.create([table])
    records = [r for n in range(12) for r in table.event("c", order(n), position(10 + n))]
    publisher.publish(records)
    setting.apply()
    alias = _store(setting).index(setting.target(table))
    (index,) = client.indices.get_alias(name=alias)

    def more(at: int, status: str) -> None:
        part = [r for n in range(6) for r in table.event("u", order(n, status), position(at + n))]
        part += table.event("d", order(at), position(at + 9))
        publisher.publish(part)
        records.extend(part)

    shown = {"filter": {"term": {"status.keyword": "new"}}, "search_routing": "7"}
    client.indices.put_alias(index=index, name=alias, body=shown)
    more(40, "sent")
    setting.apply()
    assert setting.contents(table) == setting.folded(table, records)

    client.indices.put_alias(index=index, name=alias, body={"index_routing": "7"})
    more(60, "paid")
    with pytest.raises(OperatorError, match="has a routing") as told:
        setting.apply()
    (body,) = re.findall("-d '(.*)'", told.value.hint or "")
    client.indices.update_aliases(body=json.loads(body))
    setting.apply()

    client.indices.close(index=index)
    more(80, "back")
    with pytest.raises(OperatorError, match="index_closed") as told:
        setting.apply()
    assert f"{alias}/_open" in (told.value.hint or "")
    with pytest.raises(OperatorError, match="index_closed") as told:
        setting.rows(table)
    assert f"{alias}/_open" in (told.value.hint or "")
    client.indices.open(index=index)
    setting.apply()
    assert setting.contents(table) == setting.folded(table, records)
    assert setting.rows(table) == 12
