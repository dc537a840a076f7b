"""The first pass of `cdc verify` over a large table: seconds, peak memory, and what it finds.

    CDC_TEST_POSTGRES18=postgresql://… python -m bench.verify [rows [file for the figures as JSON]]

A table in PostgreSQL, its copy in a tantivy index with one cell changed, one row missing and one too many. What is
found would then be looked at again, which takes as long as the job is behind. No broker and no Spark take part.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import psycopg2

from cdc.change import Kind
from cdc.config import ConnectorConfig, KafkaConfig, SourceConfig
from cdc.published import Published
from connectors.postgres import session
from connectors.postgres.catalog import Catalog
from snapshot.postgres import open_snapshotter
from spark_apply import verify
from spark_apply.differences import Candidate
from spark_apply.form import Form
from spark_apply.stores.tantivy import TantivyStore, _create, _fields
from spark_apply.tables import TargetColumn, TargetTable

MADE = """
DROP TABLE IF EXISTS verify_bench;
CREATE TABLE verify_bench
  (id bigint PRIMARY KEY, customer text, status text, total numeric(10,2), at timestamptz, n int);
INSERT INTO verify_bench SELECT x, 'customer ' || mod(x, 1000), 'paid', x / 100.0,
  timestamptz '2024-01-01' + x * interval '1 s', mod(x, 7) FROM generate_series(1, {rows}) x
"""


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    url = os.environ["CDC_TEST_POSTGRES18"]
    connection = psycopg2.connect(url)
    connection.autocommit = True
    with connection.cursor() as cursor:
        cursor.execute(MADE.format(rows=rows))
    source = SourceConfig(type="postgres", url=url, tables=("public.verify_bench",))
    config = ConnectorConfig(name="bench", source=source, sink=KafkaConfig(bootstrap_servers="nowhere:1"))
    checked = session.connect(session.parameters(url, "bench"))
    found = Catalog(checked).find("public", "verify_bench", {})
    checked.close()
    assert found is not None
    table = found.table
    columns = tuple(TargetColumn(column.name, column.kind, ((column.kind, (1,)),)) for column in table.columns)
    target = TargetTable("bench", "public", "verify_bench", "bench.public.verify_bench", ("id",), columns, 1)
    kinds: dict[str, Kind] = {column.name: column.kind for column in table.columns}
    form = Form(target, kinds)
    with tempfile.TemporaryDirectory() as folder:
        store = TantivyStore(Path(folder))
        with Published([table], open_snapshotter(config), prefix="bench") as published:
            begun = time.monotonic()
            index = store.folder(target)
            _create(index, _fields(target), identity="bench", rows=damaged(published, form), position="")
            print(f"the copy was made in {time.monotonic() - begun:.0f} s; memory {peak_mb():.0f} MB")
        with Published([table], open_snapshotter(config), prefix="bench") as published:
            candidates: list[Candidate] = []
            verify._Again.look = lambda _self, _copy, batch: candidates.extend(batch)  # type: ignore[method-assign]
            nothing: Any = None
            ground = verify._Ground(nothing, published, nothing, print)
            begun = time.monotonic()
            (copy,) = verify._compare(ground, verify._Compared(table, target, form, {"search": store}))
            seconds = time.monotonic() - begun
            print(f"{copy.rows:,} rows compared in {seconds:.1f} s; memory {peak_mb():.0f} MB")
            print([(one.key, one.text is not None, len(one.ids)) for one in candidates])
    if len(sys.argv) > 2:
        found = {"rows": rows, "seconds": seconds, "peak_mb": peak_mb(), "found": len(candidates)}
        Path(sys.argv[2]).write_text(orjson.dumps(found).decode())


def damaged(published: Published, form: Form) -> Iterator[tuple[str, str, str]]:
    """Id, position and document of every row, three of them wrong."""
    for part in published.read("public.verify_bench"):
        for row in part.rows:
            assert row.after is not None
            document = dict(zip(form.columns, form.of_event(row.after), strict=True))
            if document["id"] == 500:
                document["status"] = "unpaid"
            if document["id"] != 700:
                yield row.event_key.decode(), "1", orjson.dumps(document).decode()
    yield '{"id":-1}', "1", orjson.dumps({**document, "id": -1}).decode()


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    main()
