"""Acceptance cases of views, as data: tables, a view, batches of source transactions, and what each batch publishes."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from cdc.config.view_pattern import PatternConfig
from cdc.config.views import MatchConfig, ReadConfig, ViewConfig
from spark_apply.views.planning.forms import relations_named

INT, TEXT = {"kind": "int64"}, {"kind": "string"}
TIME = {"kind": "timestamp_micros"}

TABLES: Mapping[str, Mapping[str, Any]] = {
    "t": {"id": INT, "sender": TEXT, "likes": INT},
    "f": {"id": INT, "follower": TEXT, "followee": TEXT},
    "x": {"id": INT, "g": TEXT, "v": INT},
    "a": {"id": INT, "k": INT, "v": INT},
    "b": {"id": INT, "k": INT, "z": INT},
    "s": {"id": INT, "at": TIME},
    "c": {"id": INT, "search_id": INT, "at": TIME},
    "sale": {"id": INT, "country": TEXT, "at": TIME},
    "rate": {"country": TEXT, "pct": INT},
    "o": {"id": INT, "customer": TEXT, "status": TEXT, "at": TIME},
    "q": {"id": INT, "text": TEXT, "owner": TEXT},
    "d": {"id": INT, "title": TEXT, "body": TEXT},
    "tap": {"id": INT, "at": TIME, "sent": TIME, "received": TIME},
}

TIMELINE = "SELECT f.follower, t.id AS tweet FROM public.t t JOIN public.f f ON f.followee = t.sender"
LEFT = "SELECT a.id AS a, coalesce(b.id, -1) AS b, b.z AS z FROM public.a a LEFT JOIN public.b b ON b.k = a.k"
GROUPS = (
    "SELECT g, count(*) AS n, sum(v) AS s, avg(v) AS m, min(v) AS lo, max(v) AS hi, count(DISTINCT v) AS d"
    " FROM public.x GROUP BY g"
)
OUTCOME = """
SELECT s.id, CASE WHEN min(c.at) IS NOT NULL THEN 'clicked' ELSE 'not clicked' END AS outcome, min(c.at) AS first
FROM public.s s LEFT JOIN public.c c ON c.search_id = s.id AND c.at BETWEEN s.at AND s.at + INTERVAL 30 MINUTES
GROUP BY s.id, s.at HAVING min(c.at) IS NOT NULL OR s.at + INTERVAL 40 MINUTES <= clock()
"""

SESSIONS = """
WITH steps AS (
  SELECT customer, id, at, CASE WHEN at - INTERVAL 30 MINUTES <= lag(at) OVER (PARTITION BY customer ORDER BY at, id)
  THEN 0 ELSE 1 END AS first FROM public.o),
numbered AS (SELECT customer, at, sum(first) OVER (PARTITION BY customer ORDER BY at, id) AS number FROM steps)
SELECT customer, number, min(at) AS begin, max(at) AS until, count(*) AS n FROM numbered GROUP BY customer, number
"""
HOPPING = """
WITH minutes AS (SELECT id, unix_micros(CAST(at AS TIMESTAMP)) div 300000000 * 300000000 AS m FROM public.s)
SELECT timestamp_micros(w) AS w, count(*) AS n
FROM (SELECT m AS w FROM minutes UNION ALL SELECT m - 300000000 FROM minutes) covered GROUP BY timestamp_micros(w)
"""

SALES = (
    "SELECT s.id, coalesce(r.pct, -1) AS pct FROM public.sale s LEFT JOIN public.rate r ON r.country = s.country"
    " WHERE s.country IS NOT NULL"
)

Change = tuple[str, str, tuple[Any, ...]]
"""Table, op and values; of a delete the key alone."""


@dataclass(frozen=True)
class Case:
    """A view, batches of source transactions, and what is published after each batch, in short."""

    view: ViewConfig
    batches: Sequence[tuple[Sequence[Sequence[Change]], Sequence[str]]]
    """Of each batch its transactions, and what is expected: ``+key``, ``~key``, ``-key``, sorted."""


def view(sql: str, *key: str, **more: Any) -> ViewConfig:
    return ViewConfig(sql=sql, key=key, **more)


def lookup(at: str) -> ViewConfig:
    """Sales with their rate, as of a time."""
    reads = {"public.sale": ReadConfig(time="at"), "public.rate": ReadConfig(at=at)}
    return view(SALES, "id", "pct", reads=reads)


def pattern(match: str, *key: str, within: str | None = None) -> ViewConfig:
    words = {word.lstrip("!").split("{")[0] for word in match.split()}
    define = {word: f"status = '{word}'" for word in sorted(words)}
    made = PatternConfig(of="public.o", by=("customer",), match=match, define=define, within=within)
    return ViewConfig(pattern=made, key=key)


def renamed(view: ViewConfig, rename: Callable[[str], str]) -> ViewConfig:
    """The same view over tables of other names, all in the schema public."""

    def other(text: str) -> str:
        return re.sub(r"\bpublic\.(\w+)", lambda found: f"public.{rename(found[1])}", text)

    view = replace(view, reads={other(table): read for table, read in view.reads.items()})
    if view.pattern is not None:
        return replace(view, pattern=replace(view.pattern, of=other(view.pattern.of)))
    if view.match is not None:
        made = replace(view.match, queries=other(view.match.queries), docs=other(view.match.docs))
        return replace(view, match=made)
    return replace(view, sql=other(view.sql or ""))


def tables_of(view: ViewConfig) -> list[str]:
    """The tables that a view names, without their schema."""
    return [name for name in TABLES if f"public.{name}" in {*relations_named("v", view)}]


def tx(*changes: Change) -> Sequence[Change]:
    return changes


def at(clock: str) -> int:
    """Microseconds of a time of one day."""
    hours, minutes, *seconds = map(int, clock.split(":"))
    return 1_767_225_600_000_000 + ((hours * 60 + minutes) * 60 + (seconds[0] if seconds else 0)) * 1_000_000


_T1 = ("t", "c", (1, "bob", 0))
_F1 = ("f", "c", (1, "ann", "bob"))
_JOINED = ([tx(_T1), tx(_F1)], ["+ann,1"])
_timeline = view(TIMELINE, "follower", "tweet")
_left = view(LEFT, "a", "b")
_groups = view(GROUPS, "g")
_outcome = view(OUTCOME, "id")
_kept = {f"public.{name}": ReadConfig(time="at", keep="30m") for name in ("s", "c")}
_corrected = {"time": "at", "sent": "sent", "received": "received"}


def _tap(number: int, *clocks: str | None) -> Change:
    return "tap", "c", (number, *(of and at(of) for of in clocks))


_RATES = [
    [
        tx(("rate", "r", ("de", 7)), ("rate", "r", ("fr", 5))),
        tx(
            ("sale", "c", (1, "de", at("09:00"))), ("sale", "c", (2, "fr", at("10:00"))), ("sale", "c", (7, "de", None))
        ),
    ],
    [tx(("rate", "u", ("de", 8)), ("rate", "c", ("it", 1)))],
    [tx(("sale", "c", (3, "de", at("10:10"))), ("sale", "c", (4, "it", at("10:38"))), ("rate", "d", ("fr",)))],
    [tx(("rate", "u", ("de", 9)), ("rate", "u", ("it", 1)))],
    [tx(("sale", "c", (5, "de", at("10:40"))), ("sale", "c", (6, "fr", at("10:59"))), ("rate", "c", ("fr", 6)))],
]
"""Rates of 7 %, from 10:39 on of 8 and from 10:59 on of 9; the sales of 10:10 and of 10:38 are known at 10:40."""


def _rates(*expected: Sequence[str]) -> Sequence[tuple[Sequence[Sequence[Change]], Sequence[str]]]:
    return list(zip(_RATES, expected, strict=True))


_stalled = pattern("new !paid{10m}", "customer", "new_at")
_alerts = ViewConfig(
    match=MatchConfig(queries="public.q", query="text", docs="public.d", fields=("title", "body")), key=("query", "doc")
)


def _order(number: int, customer: str | None, status: str, clock: str) -> Change:
    return "o", "c", (number, customer, status, at(clock))


CLOCKS = ("10:00", "10:39", "10:40", "10:59", "11:00")
"""The source's clock at the end of each batch."""

CASES: Mapping[str, Case] = {
    "1 tweet first": Case(_timeline, [([tx(_T1)], []), ([tx(_F1)], ["+ann,1"])]),
    "1 follow first": Case(_timeline, [([tx(_F1)], []), ([tx(_T1)], ["+ann,1"])]),
    "1 in one transaction": Case(_timeline, [([tx(_F1, _T1)], ["+ann,1"])]),
    "2 unfollow, follow, one batch": Case(
        _timeline, [_JOINED, ([tx(("f", "d", (1,))), tx(("f", "c", (1, "ann", "bob")))], [])]
    ),
    "2 unfollow, follow, two batches": Case(
        _timeline, [_JOINED, ([tx(("f", "d", (1,)))], ["-ann,1"]), ([tx(_F1)], ["+ann,1"])]
    ),
    "3 follow and unfollow": Case(_timeline, [([tx(_T1)], []), ([tx(_F1), tx(("f", "d", (1,)))], [])]),
    "4 sender changed, then deleted": Case(
        _timeline, [_JOINED, ([tx(("t", "u", (1, "cat", 0))), tx(("t", "d", (1,)))], ["-ann,1"])]
    ),
    "5 sender changed": Case(
        _timeline,
        [
            ([tx(_T1, _F1, ("f", "c", (2, "dan", "cat")))], ["+ann,1"]),
            ([tx(("t", "u", (1, "cat", 0)))], ["+dan,1", "-ann,1"]),
        ],
    ),
    "7 equal values": Case(_timeline, [_JOINED, ([tx(("t", "u", (1, "bob", 0)))], [])]),
    "8 source key changed": Case(
        _timeline, [_JOINED, ([tx(("t", "d", (1,)), ("t", "c", (9, "bob", 0)))], ["+ann,9", "-ann,1"])]
    ),
    "9 truncate": Case(
        _timeline,
        [
            ([tx(_T1, _F1, ("f", "c", (2, "dan", "bob")))], ["+ann,1", "+dan,1"]),
            ([tx(("f", "d", (1,)), ("f", "d", (2,)))], ["-ann,1", "-dan,1"]),
        ],
    ),
    "10 nulls never match": Case(_timeline, [([tx(("t", "c", (1, None, 0)), ("f", "c", (1, "ann", None)))], [])]),
    "15 count, sum, avg after a delete": Case(
        _groups,
        [
            ([tx(("x", "c", (1, "g", 1)), ("x", "c", (2, "g", 2)), ("x", "c", (3, "g", 3)))], ["+g"]),
            ([tx(("x", "d", (2,)))], ["~g"]),
        ],
    ),
    "16 min and max go back": Case(
        _groups,
        [
            ([tx(("x", "c", (1, "g", 1)), ("x", "c", (5, "g", 5)), ("x", "c", (9, "g", 9)))], ["+g"]),
            ([tx(("x", "d", (9,)))], ["~g"]),
            ([tx(("x", "u", (1, "g", 7)))], ["~g"]),
        ],
    ),
    "17 the last row of a group": Case(
        _groups, [([tx(("x", "c", (1, "g", 1)))], ["+g"]), ([tx(("x", "d", (1,)))], ["-g"])]
    ),
    "17 without GROUP BY a row stays": Case(
        view("SELECT 'all' AS k, count(*) AS n, sum(v) AS s FROM public.x", "k"),
        [([tx(("x", "c", (1, "g", 1)))], ["+all"]), ([tx(("x", "d", (1,)))], ["~all"])],
    ),
    "19 a null group": Case(
        view("SELECT g, count(*) AS n FROM public.x GROUP BY g", "g"),
        [([tx(("x", "c", (1, None, 1)))], ["+None"]), ([tx(("x", "u", (1, "g", 1)))], ["+g", "-None"])],
    ),
    "19 a null row of UNION": Case(
        view("SELECT g FROM public.x UNION SELECT g FROM public.x WHERE v > 1", "g"),
        [([tx(("x", "c", (1, None, 1)))], ["+None"]), ([tx(("x", "u", (1, "g", 2)))], ["+g", "-None"])],
    ),
    "20 count distinct": Case(
        view("SELECT g, count(DISTINCT v) AS d FROM public.x GROUP BY g", "g"),
        [
            ([tx(("x", "c", (1, "g", 1)), ("x", "c", (2, "g", 1)), ("x", "c", (3, "g", 2)))], ["+g"]),
            ([tx(("x", "d", (1,)))], []),
            ([tx(("x", "d", (2,)))], ["~g"]),
        ],
    ),
    "22 outer join: matches come and go": Case(
        _left,
        [
            ([tx(("a", "c", (1, 7, 0)))], ["+1,-1"]),
            ([tx(("b", "c", (1, 7, 5)))], ["+1,1", "-1,-1"]),
            ([tx(("b", "c", (2, 7, 6)))], ["+1,2"]),
            ([tx(("b", "d", (1,)), ("b", "d", (2,)))], ["+1,-1", "-1,1", "-1,2"]),
        ],
    ),
    "23 a condition of an outer join": Case(
        view(LEFT + " AND b.z > 2", "a", "b"),
        [
            ([tx(("a", "c", (1, 7, 0)), ("b", "c", (1, 7, 3)))], ["+1,1"]),
            ([tx(("b", "u", (1, 7, 1)))], ["+1,-1", "-1,1"]),
        ],
    ),
    "an anti join": Case(
        view("SELECT a.id FROM public.a a LEFT JOIN public.b b ON b.k = a.k WHERE b.id IS NULL", "id"),
        [
            ([tx(("a", "c", (1, 7, 0)))], ["+1"]),
            ([tx(("b", "c", (1, 7, 5)))], ["-1"]),
            ([tx(("b", "d", (1,)), ("a", "u", (1, 8, 0)))], ["+1"]),
        ],
    ),
    "an outer join by groups of the other side": Case(
        view(
            "SELECT coalesce(b.z, -1) AS z, count(*) AS n FROM public.a a LEFT JOIN public.b b ON b.k = a.k"
            " GROUP BY coalesce(b.z, -1)",
            "z",
        ),
        [
            ([tx(("a", "c", (1, 7, 0)), ("a", "c", (2, 8, 0)))], ["+-1"]),
            ([tx(("b", "c", (1, 7, 5)))], ["+5", "~-1"]),
            ([tx(("b", "c", (2, 8, 5)))], ["--1", "~5"]),
            ([tx(("b", "d", (1,)))], ["+-1", "~5"]),
        ],
    ),
    "25 a self join": Case(
        view("SELECT p.id AS p, q.id AS q FROM public.a p JOIN public.a q ON p.k = q.v", "p", "q"),
        [
            ([tx(("a", "c", (1, 5, 5)))], ["+1,1"]),
            ([tx(("a", "c", (2, 6, 5)))], ["+1,2"]),
            ([tx(("a", "u", (1, 6, 6)))], ["+2,1", "-1,2"]),
        ],
    ),
    "27 clicked": Case(
        _outcome,
        [
            ([tx(("s", "c", (1, at("10:00"))))], []),
            ([tx(("c", "c", (1, 1, at("10:05"))))], ["+1"]),
            ([tx()], []),
        ],
    ),
    "28 a deadline passes while nothing happens, 29 a straggler": Case(
        _outcome,
        [
            ([tx(("s", "c", (1, at("10:00"))))], []),
            ([tx()], []),
            ([tx()], ["+1"]),
            ([tx()], []),
            ([tx(("c", "c", (1, 1, at("10:20"))))], ["~1"]),
        ],
    ),
    "a deadline moves a row from one group to another": Case(
        view(
            "SELECT CASE WHEN at + INTERVAL 40 MINUTES <= clock() THEN 'over' ELSE 'open' END AS state, count(*) AS n"
            " FROM public.s GROUP BY 1",
            "state",
        ),
        [
            ([tx(("s", "c", (1, at("10:00"))))], ["+open"]),
            ([tx()], []),
            ([tx()], ["+over", "-open"]),
            ([tx(("s", "c", (2, at("10:59"))))], ["+open"]),
        ],
    ),
    "30 what comes later than keep is left out": Case(
        view(OUTCOME, "id", reads=_kept),
        [
            ([tx(("s", "c", (1, at("10:00"))), ("s", "c", (2, at("10:00"))), ("c", "c", (1, 2, at("10:05"))))], ["+2"]),
            ([tx(("s", "c", (3, at("10:10"))))], []),
            ([tx(("s", "u", (2, at("10:01"))), ("c", "u", (1, 1, at("10:39"))))], ["+1"]),
            ([tx(("c", "c", (2, 1, at("10:20"))), ("s", "d", (1,))), tx(("s", "u", (1, at("10:58"))))], ["+3"]),
            ([tx(("c", "c", (3, 3, at("10:31")))), tx(("c", "d", (1,))), tx(("c", "d", (3,)))], []),
        ],
    ),
    "37 at: event": Case(
        lookup("event"),
        _rates(["+1,7", "+2,5", "+7,-1"], [], ["+3,7", "+4,-1"], [], ["+5,8", "+6,-1"]),
    ),
    "37 at: arrival": Case(
        lookup("arrival"),
        _rates(
            ["+1,7", "+2,5", "+7,7"],
            [],
            ["+3,8", "+4,1"],
            [],
            ["+5,9", "+6,-1"],
        ),
    ),
    "37 at: now": Case(
        lookup("now"),
        _rates(
            ["+1,7", "+2,5", "+7,7"],
            ["+1,8", "+7,8", "-1,7", "-7,7"],
            ["+2,-1", "+3,8", "+4,1", "-2,5"],
            ["+1,9", "+3,9", "+7,9", "-1,8", "-3,8", "-7,8"],
            ["+2,6", "+5,9", "+6,6", "-2,-1"],
        ),
    ),
    "33 a tumbling window and a straggler": Case(
        view(
            "SELECT date_trunc('MINUTE', at) AS w, count(*) AS n FROM public.s GROUP BY date_trunc('MINUTE', at)", "w"
        ),
        [
            (
                [tx(("s", "c", (1, at("10:00:10"))), ("s", "c", (2, at("10:01:10"))))],
                ["+2026-01-01T10:00:00Z", "+2026-01-01T10:01:00Z"],
            ),
            ([tx(("s", "c", (3, at("10:00:50"))))], ["~2026-01-01T10:00:00Z"]),
        ],
    ),
    "33 a window of ten minutes every five, a straggler, and an event that is taken back": Case(
        view(HOPPING, "w"),
        [
            (
                [tx(("s", "c", (1, at("10:01"))), ("s", "c", (2, at("10:07"))))],
                ["+2026-01-01T09:55:00Z", "+2026-01-01T10:00:00Z", "+2026-01-01T10:05:00Z"],
            ),
            ([tx(("s", "c", (3, at("10:06"))))], ["~2026-01-01T10:00:00Z", "~2026-01-01T10:05:00Z"]),
            ([tx(("s", "d", (1,)))], ["-2026-01-01T09:55:00Z", "~2026-01-01T10:00:00Z"]),
        ],
    ),
    "35 sessions: a straggler joins two, and they part again without it": Case(
        view(SESSIONS, "customer", "number"),
        [
            ([tx(_order(1, "ann", "", "10:00"), _order(2, "ann", "", "11:00"))], ["+ann,1", "+ann,2"]),
            ([tx(_order(3, "ann", "", "10:30"), _order(4, "bob", "", "10:30"))], ["+bob,1", "-ann,2", "~ann,1"]),
            ([tx(("o", "d", (3,)))], ["+ann,2", "~ann,1"]),
        ],
    ),
    "a three-way join": Case(
        view(
            "SELECT t.id AS t, f.id AS f, x.id AS x FROM public.t t JOIN public.f f ON f.followee = t.sender"
            " JOIN public.x x ON x.g = f.follower",
            "t",
            "f",
            "x",
        ),
        [
            ([tx(_T1, _F1)], []),
            ([tx(("x", "c", (1, "ann", 1)))], ["+1,1,1"]),
            (
                [tx(("t", "c", (2, "bob", 0)), ("f", "d", (1,)), ("f", "c", (2, "ann", "bob")))],
                [
                    "+1,2,1",
                    "+2,2,1",
                    "-1,1,1",
                ],
            ),
        ],
    ),
    "having": Case(
        view("SELECT g, count(*) AS n FROM public.x GROUP BY g HAVING count(*) > 1", "g"),
        [
            ([tx(("x", "c", (1, "g", 1)))], []),
            ([tx(("x", "c", (2, "g", 1)))], ["+g"]),
            ([tx(("x", "d", (1,)))], ["-g"]),
        ],
    ),
    "the best two of each group": Case(
        view(
            "SELECT g, id, v FROM (SELECT g, id, v, row_number() OVER (PARTITION BY g ORDER BY v DESC, id) AS n"
            " FROM public.x) r WHERE n <= 2",
            "g",
            "id",
        ),
        [
            ([tx(("x", "c", (1, "g", 1)), ("x", "c", (2, "g", 2)), ("x", "c", (3, "g", 3)))], ["+g,2", "+g,3"]),
            ([tx(("x", "d", (3,)))], ["+g,1", "-g,3"]),
            ([tx(("x", "u", (1, "h", 9)))], ["+h,1", "-g,1"]),
        ],
    ),
    "an aggregate of an aggregate": Case(
        view(
            "WITH per AS (SELECT g, count(*) AS n FROM public.x GROUP BY g)"
            " SELECT n, count(*) AS groups FROM per GROUP BY n",
            "n",
        ),
        [
            ([tx(("x", "c", (1, "g", 1)), ("x", "c", (2, "h", 1)))], ["+1"]),
            ([tx(("x", "c", (3, "g", 1)))], ["+2", "~1"]),
            ([tx(("x", "d", (2,)))], ["-1"]),
        ],
    ),
    "a union": Case(
        view(
            "SELECT 'a' AS src, id FROM public.a UNION ALL SELECT 'b' AS src, id FROM public.b WHERE z > 2", "src", "id"
        ),
        [
            ([tx(("a", "c", (1, 7, 0)), ("b", "c", (1, 7, 3)))], ["+a,1", "+b,1"]),
            ([tx(("b", "u", (1, 7, 2)), ("a", "d", (1,)))], ["-a,1", "-b,1"]),
        ],
    ),
    "38 paid in time, at the last instant, and too late": Case(
        _stalled,
        [
            ([tx()], []),
            ([tx(*(_order(n, who, "new", "10:30") for n, who in enumerate(("ann", "bob", "cat", None))))], []),
            ([tx(_order(4, "ann", "paid", "10:39:59"), _order(5, "bob", "paid", "10:40"))], []),
            (
                [tx(_order(6, "cat", "paid", "10:40:01"))],
                [f"+None,{at('10:30')}", f"+cat,{at('10:30')}"],
            ),
        ],
    ),
    "38 an alert once, while nothing happens, and taken back by a straggler": Case(
        _stalled,
        [
            ([tx(_order(1, "ann", "new", "10:00"), _order(2, "bob", "new", "9:00"))], [f"+bob,{at('9:00')}"]),
            ([tx()], [f"+ann,{at('10:00')}"]),
            ([tx()], []),
            ([tx(_order(3, "ann", "paid", "10:05"), _order(4, "bob", "paid", "9:11"))], [f"-ann,{at('10:00')}"]),
        ],
    ),
    "38 deleted, or paid by an update, before the deadline": Case(
        _stalled,
        [
            ([tx()], []),
            ([tx(_order(1, "ann", "new", "10:30"), _order(2, "bob", "new", "10:31"))], []),
            ([tx(("o", "d", (1,)), ("o", "u", (2, "bob", "paid", at("10:31"))))], []),
            ([tx()], []),
        ],
    ),
    "38 paid, and told later than keep": Case(
        replace(_stalled, reads={"public.o": ReadConfig(time="at", keep="30m")}),
        [
            ([tx(_order(1, "ann", "new", "10:00"), _order(2, "bob", "new", "10:00"))], []),
            ([tx(_order(3, "bob", "paid", "10:09:30"))], [f"+ann,{at('10:00')}"]),
            ([tx(_order(4, "ann", "paid", "10:09:30"))], []),
        ],
    ),
    "two orders of one instant are one alert": Case(
        _stalled,
        [
            ([tx(_order(1, "ann", "new", "9:00"), _order(2, "ann", "new", "9:00"))], [f"+ann,{at('9:00')}"]),
            ([tx(("o", "d", (1,)))], []),
            ([tx(("o", "d", (2,)))], [f"-ann,{at('9:00')}"]),
        ],
    ),
    "a row follows another in time": Case(
        pattern("new !failed paid{10m}", "customer", "new_at"),
        [
            ([tx(_order(1, "ann", "new", "9:00"), _order(2, "ann", "paid", "9:11"))], []),
            ([tx(_order(3, "ann", "paid", "9:10"))], [f"+ann,{at('9:00')}"]),
            ([tx(_order(4, "ann", "paid", "9:05"))], [f"~ann,{at('9:00')}"]),
            ([tx(_order(5, "ann", "failed", "9:04"), _order(6, "bob", "paid", "9:00"))], [f"-ann,{at('9:00')}"]),
            ([tx(("o", "u", (5, "bob", "failed", at("9:04"))))], [f"+ann,{at('9:00')}"]),
        ],
    ),
    "three failures within five minutes, then nothing paid": Case(
        pattern("failed{3} !paid{30m}", "customer", "failed_at", within="5m"),
        [
            ([tx(*(_order(n, "ann", "failed", f"9:0{n}") for n in (1, 2, 7)))], []),
            ([tx(_order(4, "ann", "failed", "9:04"))], [f"+ann,{at('9:01')}", f"+ann,{at('9:02')}"]),
            ([tx(("o", "d", (1,)))], [f"-ann,{at('9:01')}"]),
            ([tx(_order(5, "ann", "paid", "9:37"))], [f"-ann,{at('9:02')}"]),
        ],
    ),
    "a search enters and leaves": Case(
        _alerts,
        [
            (
                [
                    tx(
                        ("q", "c", (1, "red bike", "ann")),
                        ("q", "c", (2, None, "ann")),
                        ("d", "c", (1, "Red", "a bike!")),
                    )
                ],
                ["+1,1"],
            ),
            ([tx(("d", "u", (1, "red BIKE", None)), ("d", "c", (2, None, None)))], []),
            ([tx(("d", "u", (1, "blue bike", "redder")))], ["-1,1"]),
            (
                [tx(("q", "u", (1, '"blue bike" -rusty', "bob")), ("q", "u", (2, "blue OR car", "ann")))],
                ["+1,1", "+2,1"],
            ),
            ([tx(("d", "u", (1, "rusty blue bike", "")), ("d", "c", (3, "car", None)))], ["+2,3", "-1,1"]),
        ],
    ),
    "a search that is none keeps what it had, and stops no other": Case(
        _alerts,
        [
            (
                [tx(("q", "c", (1, "bike", "ann")), ("q", "c", (2, "bike", "ann")), ("d", "c", (1, "bike", None)))],
                ["+1,1", "+2,1"],
            ),
            ([tx(("q", "u", (1, "(bike", "ann"))), tx(("d", "c", (2, "bike", None)))], ["+2,2"]),
            ([tx(("d", "d", (1,)), ("q", "u", (2, "bike", "bob")))], ["-2,1"]),
            ([tx(("q", "u", (1, "(bike)", "ann")))], ["+1,2", "-1,1"]),
            ([tx(("q", "d", (2,)))], ["-2,2"]),
        ],
    ),
    "a phone's clock is wrong": Case(
        view("SELECT id, at FROM public.tap", "id", "at", reads={"public.tap": ReadConfig(**_corrected)}),
        [
            (
                [
                    tx(_tap(1, "22:00", "22:10", "10:05"), _tap(2, "22:10", "22:00", "10:05")),
                    tx(
                        _tap(3, "10:00", None, "10:05"), _tap(4, "10:00", "10:01", None), _tap(5, None, "9:00", "10:05")
                    ),
                    tx(_tap(6, "10:02", "10:01", None), _tap(7, "9:00", "9:00", "10:05")),
                ],
                [
                    f"+1,{at('9:55')}",
                    f"+2,{at('10:05')}",
                    f"+3,{at('10:00')}",
                    f"+4,{at('10:00')}",
                    f"+6,{at('10:02')}",
                    f"+7,{at('10:05')}",
                ],
            ),
            ([tx(("tap", "u", (1, at("22:00"), at("22:05"), at("10:05"))))], [f"+1,{at('10:00')}", f"-1,{at('9:55')}"]),
            ([tx(("tap", "u", (1, at("12:00"), at("12:05"), at("10:05"))))], []),
        ],
    ),
    "a phone's clock is wrong, and what it says comes late": Case(
        view(
            "SELECT at, count(*) AS n FROM public.tap GROUP BY at",
            "at",
            reads={"public.tap": ReadConfig(**_corrected, keep="30m")},
        ),
        [
            ([tx(_tap(1, "22:00", "22:10", "10:05"), _tap(2, "22:00", "23:00", "10:05"))], [f"+{at('9:55')}"]),
            ([tx(_tap(3, "8:00", "8:10", "10:39"), _tap(4, "10:30", "10:39", "10:05"))], [f"+{at('10:29')}"]),
        ],
    ),
}
