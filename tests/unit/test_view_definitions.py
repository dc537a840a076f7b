"""What a view is published by: kept as the file has it, compared by what it means, with the one before it."""

from __future__ import annotations

import threading
from dataclasses import replace

import pytest

import spark_apply.views.rebuild
from cdc.config.apply_config import ApplySource
from cdc.config.view_pattern import PatternConfig
from cdc.config.views import MatchConfig, ReadConfig, ViewConfig, ViewsConfig
from cdc.model.change import Kind
from cdc.model.errors import ConfigError, OperatorError
from cdc.model.state import Phase, State
from spark_apply.model.target_table import Version
from spark_apply.views.planning.definitions import (
    Definition,
    changed,
    described,
    published,
    refuse_changed,
    same,
    view_of,
)
from spark_apply.views.planning.followable import refuse_unfollowable
from spark_apply.views.planning.view import View
from spark_apply.views.running.commands import Command, Turn, new_command
from spark_apply.views.sql.view_plan import ViewPlan

_SQL = ViewConfig(sql="SELECT g, count(*) AS n FROM public.x GROUP BY g", key=("g",))
_VIEWS = [
    _SQL,
    replace(_SQL, refresh="full"),
    replace(_SQL, unit=("g",), unit_limit=1000),
    replace(_SQL, reads={"public.x": ReadConfig(time="at", sent="sent", received="came", keep="7d")}),
    replace(_SQL, reads={"public.x": ReadConfig(time="at", keep="7d"), "public.y": ReadConfig(at="event")}),
    ViewConfig(
        pattern=PatternConfig(of="public.o", by=("c",), match="a !b{10m}", define={"a": "s = 1", "b": "s = 2"}),
        key=("c", "a_at"),
    ),
    ViewConfig(
        match=MatchConfig(queries="public.q", query="text", docs="public.d", fields=("title",)), key=("query", "doc")
    ),
]


@pytest.mark.parametrize("view", _VIEWS)
def test_a_definition_is_read_as_it_was_written(view: ViewConfig) -> None:
    text = Definition.from_json(Definition(3, described(view), {"key": ["g"]}).to_json())
    assert view_of(text.text) == view
    assert (text.generation, text.before) == (3, {"key": ["g"]})


@pytest.mark.parametrize(
    ("sql", "means_the_same"),
    [
        ("select g,\n  COUNT(*) as n -- how many\nfrom public.x group by g", True),
        ("SELECT g, count(*) AS n FROM public.x WHERE g = 'A  b' GROUP BY g", False),
        ("SELECT g, count(n) AS n FROM public.x GROUP BY g", False),
        ("SELECT is no SQL", False),
    ],
)
def test_what_is_no_difference(sql: str, *, means_the_same: bool) -> None:
    assert same(described(_SQL), described(replace(_SQL, sql=sql))) is means_the_same


def test_what_is_a_difference() -> None:
    """Everything else that rows depend on; not how they are kept up to date, nor white space within a text."""
    one = described(_SQL)
    assert same(one, described(replace(_SQL, refresh="full")))
    assert same(one, described(replace(_SQL, unit=("g",), unit_limit=7)))
    assert not same(one, described(replace(_SQL, key=("g", "n"))))
    assert not same(one, described(replace(_SQL, reads={"public.x": ReadConfig(time="at")})))
    timed = described(replace(_SQL, reads={"public.x": ReadConfig(time="at")}))
    assert timed["from"] == {"public.x": {"time": "at", "keep": None, "at": "now"}}, "as earlier releases have kept it"
    assert not same(timed, described(replace(_SQL, reads={"public.x": ReadConfig(time="at", sent="b", received="c")})))
    texts = [described(replace(_SQL, sql=f"SELECT g FROM public.x WHERE g = '{text}'")) for text in ("a b", "a  b")]
    assert not same(*texts)


def test_generations() -> None:
    """Each definition that means something else is one; to go back is a generation, too."""
    one, other = described(_SQL), described(replace(_SQL, sql="SELECT g, 1 AS n FROM public.x"))
    first = Definition(1, one)
    assert first.next(described(replace(_SQL, sql=f"{_SQL.sql} -- the same"))) is first
    second = first.next(other)
    assert second == Definition(2, other, one)
    assert second.next(one) == Definition(3, one, other)


def _config(**views: ViewConfig) -> ViewsConfig:
    source = ApplySource(bootstrap_servers="kafka.example:9092", topic_prefix="shop")
    return ViewsConfig(name="views", source=source, state="state", views=views)


def test_an_edited_view_is_refused_by_name_with_what_differs() -> None:
    carried = {f"view.{name}": Definition(4, described(_SQL)).to_json() for name in ("one", "two", "gone")}
    state = State(connector="views", identity={}, phase=Phase.STREAM, epoch=1, carried=carried)
    assert set(published(state)) == {"one", "two", "gone"}
    edited = replace(_SQL, sql="SELECT g, sum(v) AS n FROM public.x GROUP BY g")
    config = _config(one=_SQL, two=edited, new=edited)
    assert set(changed(config, state)) == {"two"}
    with pytest.raises(ConfigError) as raised:
        refuse_changed(config, state)
    assert "two (generation 4): sql: “SUM(v)” was “COUNT(*)”" in raised.value.message
    assert raised.value.hint is not None
    assert raised.value.hint.startswith("cdc view rebuild VIEWS.yaml --view two --dry-run")
    refuse_changed(config, state, asked=["two"])
    refuse_changed(config, None)


@pytest.mark.parametrize(
    ("key", "kind", "why"),
    [
        (("g", "n"), "int64", r"views\.v\.key: it is \(g, n\), and \(g\) in what is published"),
        (("n", "g"), "int64", r"views\.v\.key: it is \(n, g\), and \(g\) in what is published"),
        (("g",), "string", r"column n is string, and bigint in what was published"),
        (("g",), "int32", None),
    ],
)
def test_what_copies_cannot_follow(key: tuple[str, ...], kind: str, why: str | None) -> None:
    plan = ViewPlan("v", key, (), ("public.x",), uses_clock=False)
    view = View(plan, [("g", Kind("string")), ("n", Kind(kind))], "")
    columns = (("g", Kind("string")), ("n", Kind("int64")), ("old", Kind("int64")))
    versions = {"view.v": [Version("views", "view", "v", "shop.view.v", 1, ("g",), columns)]}
    refuse_unfollowable([view], [], versions)
    if why is None:
        refuse_unfollowable([view], ["v"], versions)
        return
    with pytest.raises(ConfigError, match=why) as raised:
        refuse_unfollowable([view], ["v"], versions)
    assert "v_2" in str(raised.value.hint)


def test_commands_are_read_as_they_were_written() -> None:
    command = replace(new_command({"v": described(_SQL)}), taken=True, failed="why")
    assert Command.parse(command.key, command.to_bytes()) == command
    assert Command.parse(b"k", b'{"kind": "other"}') is None
    assert Command.parse(b"k", b"\xff no JSON") is None
    for views in (b"", b',"views":[]', b',"views":{"a":1}'):  # the watch must not end for it
        assert Command.parse(b"k", b'{"kind":"views"%b}' % views) is None


def test_a_run_that_is_ended_for_good_is_told_from_one_that_goes_on() -> None:
    turn = Turn()
    threading.Thread(target=turn.turn).start()
    assert turn.wait(60)
    assert not turn.for_good
    turn.set()  # as a signal does, whatever else has ended the run
    assert turn.for_good


@pytest.mark.parametrize(("asked", "others"), [(["v"], False), (["v", "w"], True)])
def test_others_may_be_rebuilt_where_one_cannot(
    monkeypatch: pytest.MonkeyPatch, asked: list[str], *, others: bool
) -> None:
    """All are published in one transaction: so none is, and the hint says how the others are."""
    given: list[Command] = []

    class Answered:
        def __init__(self, _config: ViewsConfig) -> None: ...

        def standing(self) -> list[Command]:
            return [replace(command, taken=True, failed="table public.x is left out") for command in given]

        def withdraw(self, command: Command) -> None:
            given[:] = [each for each in given if each.key != command.key]

        def close(self) -> None: ...

    monkeypatch.setattr(spark_apply.views.rebuild, "leave", lambda _config, command: given.append(command))
    monkeypatch.setattr(spark_apply.views.rebuild, "Commands", Answered)
    texts = {name: described(_SQL) for name in asked}
    with pytest.raises(OperatorError, match=r"could not publish it: table public\.x is left out") as raised:
        spark_apply.views.rebuild.publish(_config(v=_SQL), texts, lambda _line: None)
    assert ("--view NAME" in (raised.value.hint or "")) is others
    assert given == []
