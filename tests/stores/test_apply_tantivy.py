"""The embedded search index on a real broker."""

from __future__ import annotations

from pathlib import Path

import pytest
import tantivy
from pyspark.sql import SparkSession

from cdc.config.apply_config import StoreConfig
from cdc.model.change import Kind
from cdc.model.errors import OperatorError
from spark_apply.model.document import document_id
from spark_apply.model.target_table import TargetTable, Version, target
from spark_apply.stores.tantivy.store import TantivyStore
from tests.spark.laws import Law, Setting, applied_kinds, laws_of, order
from tests.spark.records import position

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")  # py4j's, one for each thread


@pytest.fixture
def setting(apply_spark: SparkSession, kafka: str, tmp_path: Path) -> Setting:
    return Setting(apply_spark, kafka, tmp_path, lambda path: StoreConfig(type="tantivy", path=str(path)))


@pytest.mark.parametrize("law", laws_of("tantivy"))
def test_law(law: Law, setting: Setting) -> None:
    law(setting)


def test_a_folder_that_was_copied_while_it_was_written_has_no_mark(setting: Setting) -> None:
    """Its documents may be older than its mark, which would say that the newest are there."""
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    publisher.publish(table.event("c", order(1), position(10)))
    setting.apply()
    restore = setting.kept(table)
    publisher.publish(table.event("u", order(1, "x"), position(11)))
    setting.apply()
    link = TantivyStore(setting.folder / "copy").folder(setting.target(table))
    newest = (link / "cdc-mark.json").read_bytes()
    lock = link / ".tantivy-meta.lock"
    lock.unlink()
    lock.mkdir()  # who may read alone, as `cdc wait` of another user, takes no lock: it has the mark all the same
    assert setting.marks(table) != [None]
    lock.rmdir()
    restore()
    assert setting.marks(table) != [None]
    (link / "cdc-mark.json").write_bytes(newest)
    assert setting.marks(table) == [None]


def test_every_kind_is_found_by_value(setting: Setting) -> None:
    table, records = applied_kinds(setting)
    assert setting.contents(table) == setting.folded(table, records)
    index = tantivy.Index.open(str(TantivyStore(setting.folder / "copy").folder(setting.target(table))))

    def hits(query: str) -> int:
        return len(index.searcher().search(index.parse_query(query, ["_cdc_text"]), 10).hits)

    assert hits("umbrella") == 1
    assert hits("c_string:umbrella") == 1
    assert hits("c_int64:[9223372036854775807 TO *]") == 1
    assert hits("c_boolean:true") == 1
    assert hits("c_decimal:[1234 TO 1235]") == 1
    assert hits("c_date:[2024-02-29T00:00:00Z TO 2024-02-29T01:00:00Z]") == 1
    assert hits("c_zoned:[2024-02-29T12:00:00Z TO 2024-02-29T12:00:01Z]") == 1
    assert hits("c_micros:[2024-02-28T00:00:00Z TO 2024-03-01T00:00:00Z]") == 1
    assert hits("c_uint64:[18446744073709551615 TO *]") == 1
    assert hits("c_float64:[* TO -1]") == 1  # -Infinity
    assert hits("c_float32:[-1 TO 1]") == 1
    assert hits("c_ints:9223372036854775807") == 1
    assert hits("c_texts:null") == 2
    assert hits("c_dates:[2024-01-01T00:00:00Z TO *]") == 0  # neither 1970 nor infinity nor what is out of its range


def test_types_that_change_in_the_file_are_refused_and_those_of_the_source_followed(tmp_path: Path) -> None:
    """The rows that are there keep a date as a date, and new ones would have it as a number of days, as text."""
    columns = ("d", Kind("date")), ("n", Kind("decimal")), ("a", Kind("array", element=Kind("string")))

    def made(*more: tuple[str, Kind], **types: str) -> TargetTable:
        versions = [
            Version("shop", "public", "t", "shop.public.t", number, ("id",), (("id", Kind("int64")), *of))
            for number, of in enumerate((columns, *([more] if more else [])), 1)
        ]
        return target(versions, types)

    store = TantivyStore(tmp_path)
    store.open(made())
    for column in ("d", "n", "a"):
        for asks in (store.open, store.foresee):
            with pytest.raises(
                OperatorError, match=rf"column {column}: it is [\w<>]+ and would have to be (text|string)"
            ) as refused:
                asks(made(**{column: "string"}))
            assert "cdc rebuild APPLY.yaml --table public.t" in (refused.value.hint or "")
    store.beside(made(d="string")).close()
    wider = made(("d", Kind("date")), ("n", Kind("string")), columns[-1], ("new", Kind("string")))
    assert store.foresee(wider).changes == ("index its rows again, for new",)
    store.open(wider)
    store.close()


def test_position_is_in_the_commit_and_a_second_writer_is_refused(setting: Setting) -> None:
    table, publisher = setting.table(), setting.publisher()
    publisher.create([table])
    publisher.publish(table.event("c", order(1), position(10)) + table.event("c", order(2), position(12)))
    summary = setting.apply()
    count = summary.tables["public.orders"]["copy"]
    assert (count.written, count.deleted, count.stale) == (2, 0, 0)
    store, made = TantivyStore(setting.folder / "copy"), setting.target(table)
    assert store.position(made) == position(12)
    store.open(made)
    with pytest.raises(OperatorError, match="has a writer already"):
        TantivyStore(setting.folder / "copy").open(made)
    store.close()
    TantivyStore(setting.folder / "copy").open(made)


def test_long_keys_have_a_digest() -> None:
    assert document_id('{"id":1}') == '{"id":1}'
    assert document_id('{"id":"' + "ü" * 300 + '"}').startswith("sha256:")
