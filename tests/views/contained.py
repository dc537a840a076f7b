"""Views of which some units cannot be computed for a while: what is published then, and what is in quarantine.

All read one table, to which all batches are written; both engines must do the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession

from cdc.config.views import ViewConfig
from cdc.model.change import Kind
from spark_apply.views.embedded.containment import WHY
from spark_apply.views.planning.forms import plan_config
from spark_apply.views.planning.output_types import output_columns
from spark_apply.views.planning.planned import in_order
from spark_apply.views.planning.view import View
from spark_apply.views.sql.view_plan import Relation

MONEY: Final = Kind("decimal", 38, 2)
ROWS: Final = Relation(
    "public.m", {"id": Kind("int64"), "g": Kind("string"), "d": MONEY, "n": Kind("int64"), "s": Kind("string")}, ("id",)
)
LARGEST, HALF = "9" * 36, 1 << 62
NULL, TWICE = "a column of the key is null", "the key is not unique"

Batch = Mapping[tuple[Any, ...], Sequence[Any] | None]
BATCHES: Final[tuple[Batch, ...]] = (
    {(n,): (f"g{n % 8}", "1.00", n % 8 + 1, str(n)) for n in range(40)},
    {
        (100,): ("g1", LARGEST, HALF, "x"),
        (101,): ("g1", LARGEST, HALF * 2 - 1, "7"),
        (102,): ("g2", "8.00", 0, "8.5"),
        (103,): (None, "2.00", 3, None),
    },
    {(0,): ("g0", "5.00", 1, "0")},
    {(1,): ("g1", "7.00", 2, "1"), (104,): ("g1", "1.00", 1, "104")},
    {(100,): None, (101,): None, (102,): None, (103,): ("g3", "2.00", 3, "103")},
)
"""What is right; what is wrong; what is right beside it; what is right in the same units; all is right again."""

Held = Mapping[str, str]


@dataclass(frozen=True)
class Contained:
    """A view, and by batch behind the first what it publishes and which units are in quarantine then, and why."""

    sql: str
    key: str
    steps: tuple[tuple[Sequence[str], Held], ...]
    refresh: str = "units"
    engine: str | None = None
    """The only one that takes it."""


_G1: Final = {'["g1"]': WHY}
_ALL: Final = {"[]": WHY}
_WRONG: Final = (["~g2", "+None"], _G1), (["~g0"], _G1), ([], _G1)

CASES: Final[Mapping[str, Contained]] = {
    "sums": Contained(
        "SELECT g, sum(d) AS s FROM public.m GROUP BY g", "g", (*_WRONG, (["~g1", "~g2", "~g3", "-None"], {}))
    ),
    "totals": Contained(
        "SELECT g, sum(n) AS s, max(id) AS last FROM public.m GROUP BY g",
        "g",
        ((["~g2", "+None"], _G1), ([], _G1), ([], _G1), (["~g1", "~g2", "~g3", "-None"], {})),
    ),
    "casts": Contained(
        "SELECT id, CAST(s AS BIGINT) AS s FROM public.m",
        "id",
        (
            (["+101", "+103"], {'["100"]': WHY, '["102"]': WHY}),
            ([], {'["100"]': WHY, '["102"]': WHY}),
            (["+104"], {'["100"]': WHY, '["102"]': WHY}),
            (["-101", "~103"], {}),
        ),
    ),
    "quotients": Contained(
        "SELECT id, 1000 div n AS q FROM public.m",
        "id",
        (
            (["+100", "+101", "+103"], {'["102"]': WHY}),
            ([], {'["102"]': WHY}),
            (["+104"], {'["102"]': WHY}),
            (["-100", "-101"], {}),
        ),
    ),
    "squares": Contained(
        "SELECT id, n * n AS n FROM public.m WHERE n > 0",
        "id",
        (
            (["+103"], {'["100"]': WHY, '["101"]': WHY}),
            ([], {'["100"]': WHY, '["101"]': WHY}),
            (["+104"], {'["100"]': WHY, '["101"]': WHY}),
            ([], {}),
        ),
    ),
    "by_text": Contained(
        "SELECT s, id, n FROM public.m",
        "s",
        (
            (["+8.5", "+x"], {'["7"]': TWICE, "[null]": NULL}),
            ([], {'["7"]': TWICE, "[null]": NULL}),
            (["+104"], {'["7"]': TWICE, "[null]": NULL}),
            (["+103", "-8.5", "-x"], {}),
        ),
    ),
    "both_wrong": Contained(
        "SELECT g, count(*) AS n, CAST(max(s) AS BIGINT) AS most FROM public.m GROUP BY g HAVING count(*) > 0",
        "g",
        (
            (["+None"], {**_G1, '["g2"]': WHY}),
            ([], {**_G1, '["g2"]': WHY}),
            ([], {**_G1, '["g2"]': WHY}),
            (["~g1", "~g3", "-None"], {}),
        ),
    ),
    "one": Contained(
        "SELECT 'all' AS k, sum(n) AS s FROM public.m", "k", (([], _ALL), ([], _ALL), ([], _ALL), (["~all"], {}))
    ),
    "one_over_groups": Contained(
        "WITH c AS (SELECT g, sum(n) AS s FROM public.m GROUP BY g) SELECT 'all' AS k, count(*) AS n, sum(s) AS s "
        "FROM c",
        "k",
        (([], _ALL), ([], _ALL), ([], _ALL), (["~all"], {})),
    ),
    "one_in_order": Contained(
        "SELECT id, 1000 div n AS q FROM public.m ORDER BY n, id LIMIT 2",
        "id",
        (([], _ALL), ([], _ALL), ([], _ALL), ([], {})),
        refresh="full",
    ),
    "instants": Contained(  # what Java raises for one beyond its range comes without a condition of Spark's
        "SELECT id, unix_micros(CAST(n AS TIMESTAMP) + INTERVAL 1 DAY) AS u FROM public.m",
        "id",
        (
            (["+102", "+103"], {'["100"]': WHY, '["101"]': WHY}),
            ([], {'["100"]': WHY, '["101"]': WHY}),
            (["+104"], {'["100"]': WHY, '["101"]': WHY}),
            (["-102"], {}),
        ),
        engine="spark",
    ),
    "of_sums": Contained(
        "SELECT count(*) AS n, 'all' AS k FROM view.sums", "k", ((["~all"], {}), ([], {}), ([], {}), (["~all"], {}))
    ),
    "of_one": Contained("SELECT k, s FROM view.one", "k", (([], {}), ([], {}), ([], {}), (["~all"], {}))),
}


def cases_of(engine: str) -> Mapping[str, Contained]:
    return {name: case for name, case in CASES.items() if case.engine in (None, engine)}


def configs_of(engine: str) -> dict[str, ViewConfig]:
    """Return the cases that an engine takes, as views.yaml has them."""
    return {name: ViewConfig(sql=of.sql, key=(of.key,), refresh=of.refresh) for name, of in cases_of(engine).items()}


def planned(spark: SparkSession, engine: str, configs: Mapping[str, ViewConfig]) -> list[View]:
    """Return views as an engine has them, in the order of what they read."""
    relations, views = {ROWS.name: ROWS}, list[View]()
    for name in in_order(configs):
        plan, sql, match = plan_config(name, configs[name], relations, {}, engine=engine)
        columns = output_columns(spark, name, sql, {of: list(relations[of].columns.items()) for of in plan.reads})
        views.append(View(plan, columns, sql, {}, match))
        relations[f"view.{name}"] = Relation(f"view.{name}", dict(columns), plan.key)
    return views
