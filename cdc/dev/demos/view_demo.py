"""The demo's second act: views follow the shop, one expires while nothing happens, and Spark compares them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from cdc.config import registry
from cdc.dev.demos.demo import Demo, Tell
from cdc.dev.demos.shop import Shop
from cdc.model.errors import BugError

TABLES: Final = """
CREATE TABLE posts (id bigint PRIMARY KEY, author text NOT NULL, words text NOT NULL);
CREATE TABLE follows (follower text, author text, PRIMARY KEY (follower, author));
CREATE TABLE searches (id bigint PRIMARY KEY, words text NOT NULL, at timestamptz NOT NULL);
CREATE TABLE clicks (id bigint PRIMARY KEY, search bigint NOT NULL, at timestamptz NOT NULL);
CREATE TABLE saved_searches (id bigint PRIMARY KEY, customer bigint NOT NULL, words text NOT NULL);
"""

_VIEWS: Final = """\
name: shop-views
source: {{bootstrap_servers: "{kafka}", topic_prefix: shop}}
state: {folder}/views
views:
  timeline:
    sql: SELECT f.follower, p.id AS post, p.author, p.words FROM public.posts p JOIN public.follows f USING (author)
    key: [follower, post]
  searches:
    sql: >
      SELECT s.id, s.words, CASE WHEN min(c.at) IS NULL THEN 'not clicked' ELSE 'clicked' END AS outcome
      FROM public.searches s
      LEFT JOIN public.clicks c ON c.search = s.id AND c.at BETWEEN s.at AND s.at + INTERVAL 3 SECONDS
      GROUP BY s.id, s.words, s.at
      HAVING min(c.at) IS NOT NULL OR s.at + INTERVAL 4 SECONDS <= clock()
    key: [id]
  alerts:
    match: {{queries: public.saved_searches, query: words, docs: public.products, fields: [name, description]}}
    key: [query, doc]
"""

_PATIENCE_S: Final = 90.0


@dataclass(frozen=True, slots=True)
class Shown:
    """What was done, and the events of a view that followed."""

    done: str
    view: str
    events: Sequence[Mapping[str, Any]]
    seconds: float


@dataclass(frozen=True, slots=True)
class Act:
    """The second act."""

    shown: Sequence[Shown]
    verified: Sequence[Mapping[str, Any]]
    """`spark_apply.views.proof.verify.Verified.as_json` of each view."""

    @property
    def wrong(self) -> int:
        """Count the rows of views that differ from Spark's answer."""
        return sum(int(of[part]) for of in self.verified for part in ("missing", "extra", "different"))


_SCENES: Final = (
    ("INSERT INTO follows VALUES ('ann', 'sally'), ('george', 'sally')", None, 0),
    ("INSERT INTO posts VALUES (1, 'sally', 'The mug of the year is back')", "timeline", 2),
    ("DELETE FROM follows WHERE follower = 'george'", "timeline", 1),
    ("INSERT INTO searches VALUES (1, 'oak tray', now()); INSERT INTO clicks VALUES (1, 1, now())", "searches", 1),
    ("INSERT INTO searches VALUES (2, 'gold spoon', now())", "searches", 1),
    ("INSERT INTO saved_searches VALUES (1, 1001, 'dishwasher mug -broken')", "alerts", 1),
    ("UPDATE products SET description = 'The mug of the year, broken in the dishwasher' WHERE id = 107", "alerts", 1),
)
"""Statements, the view in which something follows, and how many events."""


def build(shop: Shop) -> None:
    """Make the tables of the second act, before the connector starts."""
    shop.execute(TABLES)


def play(demo: Demo, tell: Tell) -> Act:
    """Run the view job, play the scenes, end it, and compare each view with Spark's answer."""
    file = demo.folder / "views.yaml"
    file.write_text(_VIEWS.format(kafka=demo.kafka, folder=demo.folder))
    config = registry.part("cdc.config.views:load_views")(Path(file))
    with _following(config, tell) as check:
        shown = list(_scenes(demo, check, tell))
    demo.catch_up()
    registry.part("spark_apply.views.job:run_views")(config, once=True)
    verified = registry.part("spark_apply.views.proof.verify:verify_views")(config, progress=tell)
    return Act(shown, [of.as_json() for of in verified])


@contextmanager
def _following(config: Any, tell: Tell) -> Iterator[Callable[[], None]]:  # noqa: ANN401 - cdc.config.views.ViewsConfig
    """Run the view job on a thread; what is yielded raises what it failed with."""
    stop, failed = threading.Event(), list[BaseException]()

    def follow() -> None:
        try:
            registry.part("spark_apply.views.job:run_views")(config, once=False, progress=tell, stop=stop)
        except BaseException as exc:  # noqa: BLE001 - raised again where the demo waits
            failed.append(exc)

    def check() -> None:
        for error in failed:
            raise error

    thread = threading.Thread(target=follow, name="views", daemon=True)
    thread.start()
    try:
        yield check
    finally:
        stop.set()
        thread.join(60)
    check()


def _scenes(demo: Demo, check: Callable[[], None], tell: Tell) -> Iterator[Shown]:
    seen: dict[str, int] = {}
    for statement, view, number in _SCENES:
        begun = time.monotonic()
        demo.shop.execute(statement)
        if view is None:
            continue
        tell(statement)
        while len(found := _events(demo, view)) < seen.get(view, 0) + number:
            check()
            if time.monotonic() > begun + _PATIENCE_S:
                raise BugError(f"view {view} shows nothing of it within {_PATIENCE_S:.0f} s: {statement}")
            time.sleep(0.1)
        new = found[seen.get(view, 0) :]
        seen[view] = len(found)
        yield Shown(statement, view, new, time.monotonic() - begun)


def _events(demo: Demo, view: str) -> list[dict[str, Any]]:
    """Read the events of a view, in the order of their positions; none before it has a topic."""
    topic = f"shop.view.{view}"
    if topic not in registry.part("spark_apply.events.kafka.topics:existing_topics")(demo.apply_config.source, [topic]):
        return []
    messages = registry.part("sinks.topics.records.read_back:read_to_end")(demo.kafka, {}, topic, "read_committed")
    found = [orjson.loads(message.value()) for message in messages if message.value() is not None]
    return sorted(found, key=lambda event: str(event["source"]["position"]))
