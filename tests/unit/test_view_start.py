"""What a start of a view job knows to be of no use is known to the next one, too, whatever ends this one."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cdc.config.views import ViewConfig
from cdc.model.change import Kind
from cdc.model.state import State
from cdc.testing import MemoryKafka, MemorySink
from spark_apply.model.completeness import complete_tables, kept_up
from spark_apply.views.model.uses import TableUse
from spark_apply.views.planning.forms import plan_config
from spark_apply.views.planning.planned import Changed
from spark_apply.views.planning.view import View
from spark_apply.views.publishing.output import ViewOutput, outbox_note
from spark_apply.views.running.store import ViewStore
from spark_apply.views.sql.view_plan import Relation
from tests.views.steps import Steps

_TABLES = [Relation(f"public.{name}", {"id": Kind("int64"), "v": Kind("int64")}, ("id",)) for name in ("a", "b")]


def _view(name: str) -> View:
    relations = {of.name: of for of in _TABLES}
    config = ViewConfig(sql=f"SELECT id, v FROM public.{name}", key=("id",))
    plan, sql, match = plan_config(name, config, relations, {})
    return View(plan, list(_TABLES[0].columns.items()), sql, {}, match)


class _Sink(MemorySink):
    def moved(self, *, whole: bool = False) -> bool:
        """Kafka's compares with what a start has found."""
        del whole
        return False


class _Job:
    """A job of two views, each over a table of its own, that has taken a step."""

    def __init__(self, folder: Path) -> None:
        self.kafka, self.folder, self.views = MemoryKafka(), folder, [_view("a"), _view("b")]
        self.steps = Steps(folder, _TABLES, self.views)
        for view in self.views:
            self.steps.state.execute("INSERT INTO views VALUES (?, ?)", [view.name, view.fingerprint])
        for table in _TABLES:
            self.steps.state.execute("INSERT INTO tables VALUES (?, NULL, false, NULL)", [table.name])
        self.step(1)
        self.opened(*self.views)

    def step(self, number: int) -> None:
        """Leave what a step has published in the outbox."""
        row = json.dumps({"id": number, "v": 1})
        outbox = [number, "a", "c", json.dumps({"id": number}), None, row]
        self.steps.state.execute("INSERT INTO outbox VALUES (?, ?, ?, ?, ?, ?)", outbox)
        at = f"00000001.{number:016x}.00000000"
        tokens = (f"t{number}", f"t{number - 1}")
        note = outbox_note(step=number, seq=number, position=at, clock_ms=1, streams={}, tokens=tokens)
        self.steps.state.put(step=number, seq=number, position=at, token=tokens[0], outbox=json.dumps(note))

    @property
    def stand(self) -> State:
        found = self.kafka.state("p", "job")
        assert found is not None
        return found

    def opened(self, *views: View) -> set[str]:
        """Start it with these views; return those that are to be computed whole. Nothing more comes of it."""
        sink = _Sink(self.kafka, "job", "p")
        output = ViewOutput(sink, "job", "p", self.steps.state, views, lambda _: None, "shop")
        output.begin()
        uses = tuple(TableUse(f"public.{view.name}") for view in views)
        streams: Any = SimpleNamespace(open=set, streams={})
        store = ViewStore(self.steps.state, output, views, uses, self.folder, streams, lambda *_: Changed())
        store.begin()
        return store._running.stale


def test_a_topic_that_was_lost_is_published_again_though_the_first_start_behind_it_ends_early(tmp_path: Path) -> None:
    """The start sends what a killed step has left, and with that what the topics are now: nobody sees a loss then."""
    job = _Job(tmp_path)
    assert job.opened(*job.views) == set()
    job.step(2)
    job.kafka.delete("p.view.a")
    assert job.opened(*job.views) == {"a"}
    assert job.opened(*job.views) == {"a"}
    job.steps.close()


def test_a_view_that_comes_back_is_computed_whole_though_no_step_was_taken_without_it(tmp_path: Path) -> None:
    """The rows of its table are gone from the state: that all of them were deleted since, nothing else would tell."""
    job = _Job(tmp_path)
    assert job.opened(job.views[0]) == set()
    assert job.opened(*job.views) == {"b"}
    job.steps.close()


def test_a_view_that_a_step_has_left_out_is_not_said_to_be_where_the_others_are(tmp_path: Path) -> None:
    """Else its copies would say so, and what reads it beside others would have rows of two positions."""
    job = _Job(tmp_path)
    relations = {view.relation for view in job.views}
    assert complete_tables(job.stand, relations) == kept_up(job.stand) == relations
    job.steps.state.execute("DELETE FROM views WHERE name = 'b'")
    job.step(2)
    job.opened(*job.views)
    assert complete_tables(job.stand, relations) == kept_up(job.stand) == {"view.a"}
    assert set(job.stand.tables) == relations
    job.steps.close()
