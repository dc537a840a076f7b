"""Recipes of docs/view-recipes.md, as data: tables, a view, two batches of changes. The page shows what it gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from cdc.config.view_pattern import PatternConfig
from cdc.config.views import MatchConfig, ViewConfig
from tests.views.cases import INT, TEXT, TIME, at

MONEY = {"kind": "decimal", "precision": 10, "scale": 2}
Change = tuple[str, str, tuple[Any, ...]]
"""Table, op and values; of a delete the key alone."""


@dataclass(frozen=True)
class Recipe:
    """A view, and what it shows after each of two batches."""

    title: str
    about: str
    tables: Mapping[str, Mapping[str, Any]]
    text: str
    """Its SQL, or its pattern or match as views.yaml has it."""
    key: Sequence[str]
    first: Sequence[Change]
    then: str
    """What happens next, in words."""
    second: Sequence[Change] = ()

    @property
    def is_sql(self) -> bool:
        return not self.text.startswith(("pattern:", "match:"))

    @property
    def view(self) -> ViewConfig:
        if self.is_sql:
            return ViewConfig(sql=self.text, key=tuple(self.key))
        given = yaml.safe_load(self.text)
        pattern = PatternConfig(**given["pattern"]) if "pattern" in given else None
        match = MatchConfig(**given["match"]) if "match" in given else None
        return ViewConfig(pattern=pattern, match=match, key=tuple(self.key))


CLOCKS = ("10:10", "11:00")
"""The source's clock after each batch."""

_TWEETS = {"id": INT, "sender": TEXT, "text": TEXT}
_FOLLOWS = {"id": INT, "follower": TEXT, "followee": TEXT}
_CUSTOMERS = {"id": INT, "name": TEXT}
_ORDERS = {"id": INT, "customer": INT, "total": MONEY, "status": TEXT, "at": TIME}
_SEARCHES = {"id": INT, "at": TIME}
_CLICKS = {"id": INT, "search_id": INT, "at": TIME}
_VISITS = {"id": INT, "visitor": TEXT, "at": TIME}
_SAVED = {"id": INT, "text": TEXT}
_LISTINGS = {"id": INT, "title": TEXT, "body": TEXT}
_TRANSFERS = {"id": INT, "debit": TEXT, "credit": TEXT, "amount": MONEY}


def _order(number: int, customer: int, total: str, status: str, clock: str) -> tuple[Any, ...]:
    return number, customer, total, status, at(clock)


RECIPES: Sequence[Recipe] = (
    Recipe(
        "A timeline",
        "Who follows whom is joined with what they write. A row comes and goes with either side.",
        {"tweets": _TWEETS, "follows": _FOLLOWS},
        "SELECT f.follower, t.id AS tweet_id, t.sender, t.text\n"
        "FROM public.tweets t JOIN public.follows f ON f.followee = t.sender",
        ("follower", "tweet_id"),
        [
            ("tweets", "c", (1, "bob", "hello")),
            ("follows", "c", (1, "ann", "bob")),
            ("follows", "c", (2, "dan", "bob")),
        ],
        "Ann stops following Bob, who writes again:",
        [("follows", "d", (1,)), ("tweets", "c", (2, "bob", "again"))],
    ),
    Recipe(
        "Orders with their customers’ names",
        "An outer join keeps orders whose customer is not there, or not yet. A new name is in all rows at once.",
        {"orders": _ORDERS, "customers": _CUSTOMERS},
        "SELECT o.id, o.total, c.name AS customer\n"
        "FROM public.orders o LEFT JOIN public.customers c ON c.id = o.customer",
        ("id",),
        [
            ("customers", "c", (1, "Ann")),
            ("orders", "c", _order(1, 1, "10.00", "new", "10:00")),
            ("orders", "c", _order(2, 2, "5.00", "new", "10:01")),
        ],
        "Customer 2 arrives, customer 1 is renamed:",
        [("customers", "c", (2, "Bob")), ("customers", "u", (1, "Anna"))],
    ),
    Recipe(
        "Turnover by customer, corrected",
        "Sums go down as they go up: what is cancelled is taken out, and a customer without orders leaves the view.",
        {"orders": _ORDERS},
        "SELECT customer, count(*) AS orders, sum(total) AS turnover\n"
        "FROM public.orders WHERE status <> 'cancelled' GROUP BY customer",
        ("customer",),
        [
            ("orders", "c", _order(1, 1, "10.00", "new", "10:00")),
            ("orders", "c", _order(2, 1, "5.00", "new", "10:01")),
            ("orders", "c", _order(3, 2, "7.00", "new", "10:02")),
        ],
        "Orders 2 and 3 are cancelled:",
        [
            ("orders", "u", _order(2, 1, "5.00", "cancelled", "10:01")),
            ("orders", "u", _order(3, 2, "7.00", "cancelled", "10:02")),
        ],
    ),
    Recipe(
        "The two largest orders of each customer",
        "The order inside a group ends with the key, so it is total. What moves up when one goes is published.",
        {"orders": _ORDERS},
        "SELECT customer, id, total FROM (\n"
        "  SELECT customer, id, total,\n"
        "         row_number() OVER (PARTITION BY customer ORDER BY total DESC, id) AS place\n"
        "  FROM public.orders) ranked\nWHERE place <= 2",
        ("customer", "id"),
        [
            ("orders", "c", _order(1, 1, "10.00", "new", "10:00")),
            ("orders", "c", _order(2, 1, "5.00", "new", "10:01")),
            ("orders", "c", _order(3, 1, "7.00", "new", "10:02")),
        ],
        "Order 1 is deleted:",
        [("orders", "d", (1,))],
    ),
    Recipe(
        "A product with its tags, as one document",
        "What belongs to a row is listed in it, for a search index that shall find the product by any of its tags.",
        {"products": {"id": INT, "title": TEXT}, "tags": {"id": INT, "product": INT, "tag": TEXT}},
        "SELECT p.id, p.title, listagg(t.tag, ', ') WITHIN GROUP (ORDER BY t.tag) AS tags\n"
        "FROM public.products p LEFT JOIN public.tags t ON t.product = p.id GROUP BY p.id, p.title",
        ("id",),
        [
            ("products", "c", (1, "Bicycle")),
            ("products", "c", (2, "Lamp")),
            ("tags", "c", (1, 1, "red")),
            ("tags", "c", (2, 1, "city")),
        ],
        "The red tag is corrected, and the lamp gets one:",
        [("tags", "u", (1, 1, "blue")), ("tags", "c", (3, 2, "desk"))],
    ),
    Recipe(
        "Customers without an order",
        "What is not there is asked for by an outer join and `IS NULL`.",
        {"orders": _ORDERS, "customers": _CUSTOMERS},
        "SELECT c.id, c.name\n"
        "FROM public.customers c LEFT JOIN public.orders o ON o.customer = c.id\nWHERE o.id IS NULL",
        ("id",),
        [("customers", "c", (1, "Ann")), ("customers", "c", (2, "Bob"))],
        "Bob orders:",
        [("orders", "c", _order(1, 2, "10.00", "new", "10:20"))],
    ),
    Recipe(
        "Searched, and did not click",
        "A deadline passes though nothing happens; ten minutes are left for clicks that come late. A click that comes "
        "even later corrects the row.",
        {"searches": _SEARCHES, "clicks": _CLICKS},
        "SELECT s.id, CASE WHEN min(c.at) IS NOT NULL THEN 'clicked' ELSE 'not clicked' END AS outcome\n"
        "FROM public.searches s\n"
        "LEFT JOIN public.clicks c ON c.search_id = s.id AND c.at BETWEEN s.at AND s.at + INTERVAL 30 MINUTES\n"
        "GROUP BY s.id, s.at\n"
        "HAVING min(c.at) IS NOT NULL OR s.at + INTERVAL 40 MINUTES <= clock()",
        ("id",),
        [
            ("searches", "c", (1, at("10:00"))),
            ("searches", "c", (2, at("10:01"))),
            ("clicks", "c", (1, 1, at("10:05"))),
        ],
        "At 11:00, without anything else:",
    ),
    Recipe(
        "Visits by minute, and a straggler",
        "A late event is in the minute in which it happened, and only that minute is published again.",
        {"visits": _VISITS},
        "SELECT date_trunc('MINUTE', at) AS minute, count(*) AS visits\n"
        "FROM public.visits GROUP BY date_trunc('MINUTE', at)",
        ("minute",),
        [("visits", "c", (1, "ann", at("10:00:10"))), ("visits", "c", (2, "bob", at("10:01:30")))],
        "A phone that was offline sends a visit of 10:00:50:",
        [("visits", "c", (3, "dan", at("10:00:50")))],
    ),
    Recipe(
        "When it happened, by a phone whose clock is wrong",
        "A phone notes when something happened and when it sent that, the server when it came. How long the phone kept"
        " it is right, whatever its clock says. What was sent before it happened counts when it came. Other views read"
        " this one, as `view.taps`; where one view needs it, [`sent` and `received`](views.md#clocks-that-are-wrong) do"
        " the same.",
        {"taps": {"id": INT, "event": TIME, "sent": TIME, "received": TIME}},
        "SELECT id, sent < event AS absurd,\n"
        "       CASE WHEN sent < event THEN CAST(received AS TIMESTAMP) ELSE timestamp_micros(\n"
        "         unix_micros(CAST(received AS TIMESTAMP))\n"
        "         - unix_micros(CAST(sent AS TIMESTAMP)) + unix_micros(CAST(event AS TIMESTAMP))) END AS at\n"
        "FROM public.taps",
        ("id",),
        [
            ("taps", "c", (1, at("11:00"), at("11:02"), at("10:03"))),
            ("taps", "c", (2, at("12:00"), at("11:02"), at("10:03"))),
        ],
        "A tap comes that the phone had kept for an hour, and the second one is taken back:",
        [("taps", "c", (3, at("10:05"), at("11:05"), at("10:06"))), ("taps", "d", (2,))],
    ),
    Recipe(
        "Visits in ten minutes, every five",
        "A visit is in each window that covers it, so it is a row for each.",
        {"visits": _VISITS},
        "WITH fives AS (\n"
        "  SELECT unix_micros(CAST(at AS TIMESTAMP)) div 300000000 * 300000000 AS five FROM public.visits),\n"
        "covered AS (SELECT five AS begin FROM fives UNION ALL SELECT five - 300000000 FROM fives)\n"
        "SELECT timestamp_micros(begin) AS begin, count(*) AS visits FROM covered GROUP BY timestamp_micros(begin)",
        ("begin",),
        [("visits", "c", (1, "ann", at("10:01"))), ("visits", "c", (2, "bob", at("10:07")))],
        "A visit of 10:06 arrives, that of 10:01 is taken back:",
        [("visits", "c", (3, "dan", at("10:06"))), ("visits", "d", (1,))],
    ),
    Recipe(
        "Sessions",
        "A visit that comes more than half an hour after the one before begins a session. A straggler can join two.",
        {"visits": _VISITS},
        "WITH steps AS (\n"
        "  SELECT visitor, id, at,\n"
        "         CASE WHEN at - INTERVAL 30 MINUTES <= lag(at) OVER (PARTITION BY visitor ORDER BY at, id)\n"
        "              THEN 0 ELSE 1 END AS first\n"
        "  FROM public.visits),\n"
        "numbered AS (\n"
        "  SELECT visitor, at, sum(first) OVER (PARTITION BY visitor ORDER BY at, id) AS number FROM steps)\n"
        "SELECT visitor, number, min(at) AS begin, max(at) AS until, count(*) AS visits\n"
        "FROM numbered GROUP BY visitor, number",
        ("visitor", "number"),
        [("visits", "c", (1, "ann", at("9:00"))), ("visits", "c", (2, "ann", at("10:00")))],
        "A visit of 9:30 arrives:",
        [("visits", "c", (3, "ann", at("9:30")))],
    ),
    Recipe(
        "Orders that wait too long",
        "A condition on `clock()` in WHERE: rows enter by themselves, and leave when they are dealt with.",
        {"orders": _ORDERS},
        "SELECT id, customer FROM public.orders\nWHERE status = 'new' AND at + INTERVAL 30 MINUTES <= clock()",
        ("id",),
        [
            ("orders", "c", _order(1, 1, "10.00", "new", "9:00")),
            ("orders", "c", _order(2, 1, "5.00", "new", "10:05")),
        ],
        "Order 1 is paid; at 11:00 order 2 has waited long enough:",
        [("orders", "u", _order(1, 1, "10.00", "paid", "9:00"))],
    ),
    Recipe(
        "Balances of accounts",
        "Both sides of each transfer are one list; at each position that is published, all accounts sum up to zero.",
        {"transfers": _TRANSFERS},
        "SELECT account, sum(amount) AS balance FROM (\n"
        "  SELECT credit AS account, amount FROM public.transfers\n"
        "  UNION ALL SELECT debit AS account, -amount AS amount FROM public.transfers) entries\n"
        "GROUP BY account",
        ("account",),
        [("transfers", "c", (1, "ann", "bob", "10.00")), ("transfers", "c", (2, "bob", "dan", "4.00"))],
        "The second transfer is taken back:",
        [("transfers", "d", (2,))],
    ),
    Recipe(
        "Visitors by day, of sketches by hour",
        "Who came in several hours counts once. A [sketch](views.md#approximate-aggregates) is kept for each hour; a "
        "day merges its 24, and reads no visit again.",
        {"visits": _VISITS},
        "WITH hours AS (\n"
        "  SELECT date_trunc('HOUR', at) AS hour, count(*) AS visits, hll_sketch_agg(visitor) AS visitors\n"
        "  FROM public.visits GROUP BY date_trunc('HOUR', at))\n"
        "SELECT date_trunc('DAY', hour) AS day, sum(visits) AS visits,\n"
        "       hll_sketch_estimate(hll_union_agg(visitors)) AS visitors\n"
        "FROM hours GROUP BY date_trunc('DAY', hour)",
        ("day",),
        [
            ("visits", "c", (1, "ann", at("9:00"))),
            ("visits", "c", (2, "bob", at("9:30"))),
            ("visits", "c", (3, "ann", at("10:00"))),
        ],
        "A visit by Dan of 9:40 arrives, Ann’s second one is taken back:",
        [("visits", "c", (4, "dan", at("9:40"))), ("visits", "d", (3,))],
    ),
    Recipe(
        "Placed, and not paid within ten minutes",
        "A [pattern](views.md#patterns): an alert comes when the ten minutes have passed, though nothing happens then.",
        {"orders": _ORDERS},
        "pattern:\n"
        "  of: public.orders\n"
        "  by: customer\n"
        '  match: "placed !paid{10m}"\n'
        "  define: {placed: \"status = 'new'\", paid: \"status = 'paid'\"}",
        ("customer", "placed_at"),
        [
            ("orders", "c", _order(1, 1, "10.00", "new", "9:50")),
            ("orders", "c", _order(2, 2, "5.00", "new", "9:55")),
            ("orders", "c", _order(3, 3, "7.00", "new", "10:05")),
        ],
        "A payment of 9:58 by customer 1 is told late, order 2 is paid by an UPDATE, and the clock comes to 11:00:",
        [
            ("orders", "c", _order(4, 1, "10.00", "paid", "9:58")),
            ("orders", "u", _order(2, 2, "5.00", "paid", "9:55")),
        ],
    ),
    Recipe(
        "Saved searches",
        "A [match](views.md#searches): a row comes when a text begins to be found, and goes when it is not any more.",
        {"saved_searches": _SAVED, "listings": _LISTINGS},
        "match: {queries: public.saved_searches, query: text, docs: public.listings, fields: [title, body]}",
        ("query", "doc"),
        [
            ("saved_searches", "c", (1, "red bike -rusty")),
            ("saved_searches", "c", (2, '"city bike" OR car')),
            ("listings", "c", (10, "City bike", "red, as new")),
            ("listings", "c", (11, "A bike for the city", "blue")),
        ],
        "The first listing turns out to be rusty, the second one to be red; search 2 is for bikes in the city now:",
        [
            ("listings", "u", (10, "City bike", "red, a bit rusty")),
            ("listings", "u", (11, "A bike for the city", "red, not blue")),
            ("saved_searches", "u", (2, "city bike")),
        ],
    ),
)

_HEAD = """# Recipes for views

Each recipe is run by a test, and what is shown is what it publishes: the rows of the view's topic, folded. Amounts are
`numeric(10,2)`, times `timestamp`. [Views](views.md) says what holds for all of them.
"""


def page(results: Sequence[Sequence[Sequence[Mapping[str, Any]]]]) -> str:
    """The page, from the rows of each recipe after each of its batches."""
    parts = [_HEAD]
    for recipe, (first, second) in zip(RECIPES, results, strict=True):
        parts.append(
            f"\n## {recipe.title}\n\n{recipe.about}\n\n```{'sql' if recipe.is_sql else 'yaml'}\n{recipe.text}\n```\n"
        )
        parts.append(f"\n`key: [{', '.join(recipe.key)}]`\n\n{_table(first)}\n\n{recipe.then}\n\n{_table(second)}\n")
    return "".join(parts)


_WORDS = {"None": "null", "True": "true", "False": "false"}


def _table(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return "(no rows)"
    names = list(rows[0])
    lines = [f"| {' | '.join(names)} |", f"|{'---|' * len(names)}"]
    lines += [f"| {' | '.join(_WORDS.get(str(row[name]), str(row[name])) for name in names)} |" for row in rows]
    return "\n".join(lines)
