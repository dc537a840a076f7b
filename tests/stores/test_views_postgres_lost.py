"""Views in PostgreSQL whose connection is lost, at each step: an error is one to be retried, and nothing is lost."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdc.model.errors import RetryableError
from tests.conftest import Database
from tests.views.bench import ViewBench
from tests.views.cases import TABLES, view
from tests.views.database import Breaking

pytest_plugins = ["tests.spark.fixtures"]
pytestmark = pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")

POINTS = (
    "current_setting('server_version_num')",
    "INSERT INTO meta VALUES ('owner'",
    "SELECT name, fingerprint FROM views",
    "SELECT relation FROM kept",
    "INSERT INTO tables",
    "INSERT INTO kept",
    "SELECT mark, reload FROM tables",
    "UPDATE tables SET mark",
    "COPY ",
    "CREATE TEMP TABLE",
    "INSERT INTO outbox",
    "COMMIT of 'outbox'",
    "FROM outbox WHERE seq >",
    "DELETE FROM outbox",
    "SELECT view, count(*) FROM quarantine",
)
"""Where the connection is lost: before such a statement; of a commit, behind the last statement of a step."""


@pytest.mark.full  # tests/integration/test_views_in_postgres.py loses the connection in steps alone
@pytest.mark.timeout(1800)
def test_a_connection_that_is_lost_anywhere_costs_nothing(
    apply_spark: SparkSession, kafka: str, postgres18: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaking = Breaking(postgres18, monkeypatch)
    views = {"rows": view("SELECT id, sender FROM public.t", "id")}
    bench = ViewBench(kafka, tmp_path, {"t": TABLES["t"]}, views, engine="postgres", store=postgres18.url)
    ends = dict[str, str]()
    for number, point in enumerate(POINTS):
        bench.transaction(("t", "c", {"id": number, "sender": "ann", "likes": 0}))
        breaking.point = point
        try:
            bench.run()
        except RetryableError as exc:
            ends[point] = exc.message
            bench.run()
        else:
            ends[point] = "done"
        assert breaking.point == "", point
        assert bench.signs("rows") == [f"+{number}"], (point, ends)
    with closing(postgres18.connect()) as connection, connection.cursor() as cursor:
        cursor.execute('SELECT count(*) FROM cdc_views_shop_views."view.rows"')
        assert cursor.fetchall() == [(len(POINTS),)]
    assert ends[POINTS[0]].startswith("store: opening the state of views: ")
    assert {ends[point] for point in POINTS[-8:]} == {"done"}
