"""The state's file: what is damaged is made again, what cannot be reached stays, and keys are equal as their values."""

from __future__ import annotations

import json
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cdc.config.apply_config import ApplySource
from cdc.config.views import ViewConfig, ViewsConfig
from cdc.model.change import Kind
from cdc.model.errors import OperatorError
from spark_apply.views.cluster.state import ClusterState
from spark_apply.views.embedded.fold import SourceTable, find_changes, move_on
from spark_apply.views.embedded.state import KEY, OP, POSITION, SOURCE_MS, StateInUseError, ViewState, place
from spark_apply.views.model.uses import FROM_POSITION, TableUse, Way
from spark_apply.views.model.values import object_of
from spark_apply.views.planning.forms import plan_config
from spark_apply.views.planning.view import View
from spark_apply.views.publishing.status import note_status, noted
from spark_apply.views.sql.view_plan import Relation
from tests.views.steps import Steps

ONE = ViewConfig(sql="SELECT id FROM public.t", key=("id",))


def opened(folder: Path) -> ViewState:
    return ViewState(folder, memory="100MB")


def damaged(whole: bytes, how: str) -> bytes:
    half = len(whole) // 2
    return {
        "empty": b"",
        "zeros": bytes(len(whole)),
        "cut": whole[:half],
        "cut in its head": whole[:5000],
        "a bit of its head": whole[:4200] + bytes([whole[4200] ^ 1]) + whole[4201:],
        "another version": whole[:12] + b"\xc8" + whole[13:],
        "no database": b"state" * 1000,
    }[how]


@pytest.mark.parametrize(("was", "now", "again"), [("float32", "float64", True), ("int32", "int64", False)])
def test_topics_are_read_again_where_a_wider_type_has_other_values(
    tmp_path: Path, was: str, now: str, *, again: bool
) -> None:
    """A REAL of 0.1 is no DOUBLE of 0.1: events are read as the type that the column has now."""
    state = opened(tmp_path)
    for kind in (was, now):
        state.prepare_table("public.t", [("id", Kind("int64")), ("v", Kind(kind))], (), ("id",))
    assert state.is_to_be_read_again == again
    state.close()


def test_versions_have_the_values_of_their_events_where_a_column_has_become_a_text(tmp_path: Path) -> None:
    """The engine's text of an instant is another one than the event's, which comes again under the same position."""
    use, state = TableUse("public.r", Way.HISTORY, at="event"), opened(tmp_path)
    before, changed, coming, pending = (place(of, use.relation) for of in ("before", "changed", "coming", "pending"))

    def folded(kind: str, *values: str) -> list[str]:
        table = SourceTable(use, [("k", Kind("int64")), ("v", Kind(kind))], ("k",))
        state.prepare_table(use.relation, table.columns, use.hidden, use.key(table.key))
        state.clear_waiting(use.relation)
        for number, value in enumerate(values, 1):
            event = ['{"k":1}', f"{number:04}", "c", number, 1, value]
            state.execute(
                f"INSERT INTO {pending} ({KEY}, {POSITION}, {OP}, {SOURCE_MS}, k, v) VALUES (?,?,?,?,?,?)", event
            )
        find_changes(table, state, limit="9", clock_ms=None, reload=True)
        state.execute(f"DELETE FROM {before} b WHERE {FROM_POSITION} IN (SELECT {FROM_POSITION} FROM {changed})")
        state.execute(f"INSERT INTO {before} BY NAME SELECT * FROM {coming}")
        return [str(value) for (value,) in state.rows(f"SELECT v FROM {before} ORDER BY {POSITION}")]

    first = ["2026-01-01 10:00:00", "2026-01-01 11:00:00", "2026-01-01 12:00:00"]
    assert folded("timestamp_micros", *first) == first
    assert folded("string", "10", "11", "12", "noon") == ["10", "11", "12", "noon"]
    assert folded("string", "11") == ["11", "11", "12", "noon"], "an event that the log has no more is no reason"
    state.close()


def test_events_that_wait_in_the_lake_are_let_go_of_with_the_others(tmp_path: Path) -> None:
    """Their topic is read from its beginning: a row that it does not have any more would be among them for ever."""
    state = ClusterState(tmp_path, memory="100MB")
    state.prepare_table("public.t", [("id", Kind("int64"))], (), ("id",))
    with state.transaction():
        state.execute("INSERT INTO lake.waiting VALUES ('public.t', 7, ''), ('public.u', 8, '')")
        state.clear_waiting("public.t")
    assert state.named() == [("waiting", "public.u", 8)]
    state.close()


def test_a_state_that_an_earlier_release_has_made_is_known_until_it_is_made_again(tmp_path: Path) -> None:
    state = opened(tmp_path)
    assert state.tells_events_by_key
    state.put(events=None)
    state.close()
    state = opened(tmp_path)
    assert not state.tells_events_by_key
    state.begin_again(seq=0, step=0)
    assert state.tells_events_by_key
    state.close()


@pytest.mark.parametrize(
    "how", ["empty", "zeros", "cut", "cut in its head", "a bit of its head", "another version", "no database"]
)
def test_a_damaged_file_is_kept_and_made_again(tmp_path: Path, how: str) -> None:
    folder = tmp_path / "blocks-and-locks"  # no word of a path is what has happened
    opened(folder).close()
    file = folder / "state.duckdb"
    broken = damaged(file.read_bytes(), how)
    file.write_bytes(broken)
    state = opened(folder)
    assert state.set_aside is not None
    assert state.set_aside.read_bytes() == broken
    assert state.get("seq") == "0"
    state.close()


def test_a_file_that_is_out_of_reach_stays(tmp_path: Path) -> None:
    """No files can be opened any more, as where a process has too many: that says nothing about this one."""
    state = opened(tmp_path)
    state.put(seq=7)
    state.close()
    with no_more_files(), pytest.raises(OperatorError, match="cannot be read or written: Too many open files"):
        opened(tmp_path)
    again = opened(tmp_path)
    assert (again.set_aside, again.get("seq")) == (None, "7")
    again.close()


def test_a_file_beside_which_another_ones_log_lies_is_made_again(tmp_path: Path) -> None:
    """One of the two was put back from a copy of yesterday: they do not fit, however often the job is started."""
    folder, older = tmp_path / "state", tmp_path / "older"
    state = opened(folder)
    state.put(seq=1)
    state.close()
    shutil.copytree(folder, older)
    state = opened(folder)
    state.put(seq=2)
    state.close()
    state = opened(folder)
    state.put(seq=3)
    log = (folder / "state.duckdb.wal").read_bytes()
    state.close()
    (older / "state.duckdb.wal").write_bytes(log)
    state = opened(older)
    assert (state.set_aside, state.get("seq")) == (older / "state.duckdb.unusable-1", "0")
    state.close()
    kept = {path.name: path.read_bytes() for path in older.glob("*.unusable-*")}
    assert kept["state.duckdb.unusable-1.wal"] == log
    (older / "state.duckdb").write_bytes(b"broken" * 1000)
    state = opened(older)
    assert state.set_aside == older / "state.duckdb.unusable-2"
    state.close()
    for path in older.glob("*.unusable-1*"):
        path.unlink()
    (older / "state.duckdb").write_bytes(b"broken again" * 1000)
    opened(older).close()
    assert (older / "state.duckdb.unusable-2").read_bytes() == b"broken" * 1000, "what is kept is not written over"


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("")
    for folder, why in ((tmp_path / "taken", "File exists"), (tmp_path / "taken" / "state", "Not a directory")):
        with pytest.raises(OperatorError, match=f"cannot be read or written: {why}"):
            opened(folder)
    (tmp_path / "status.json").mkdir()
    with pytest.raises(OperatorError, match="cannot be read or written: Is a directory"):
        note_status(tmp_path, {}, {}, engine="duckdb")


def test_a_folder_that_another_process_uses_is_told(tmp_path: Path) -> None:
    """Another folder is no way out for a second copy of the job: it would fence the first one off."""
    opened(tmp_path).close()
    holds = (
        f"import duckdb; kept = duckdb.connect({str(tmp_path / 'state.duckdb')!r}); print('there', flush=True); input()"
    )
    with subprocess.Popen([sys.executable, "-c", holds], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"there\n"
        with pytest.raises(StateInUseError, match="another process uses it") as raised:
            opened(tmp_path)
        other.communicate(b"\n")
    assert raised.value.hint == "stop the other copy of this view job; a job of another name needs a state: of its own"
    opened(tmp_path).close()


@pytest.mark.parametrize("text", ["", '{"views": {"a"', "[]", "\0\0"])
def test_a_note_that_was_cut_is_none(tmp_path: Path, text: str) -> None:
    """`cdc view status` says what Kafka knows, as it does on another machine."""
    (tmp_path / "status.json").write_text(text)
    source = ApplySource(bootstrap_servers="127.0.0.1:1", topic_prefix="p")
    assert noted(ViewsConfig(name="v", source=source, state=str(tmp_path), views={"a": ONE})) == {}


@contextmanager
def no_more_files() -> Iterator[None]:
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


@contextmanager
def no_larger_files(size: int) -> Iterator[None]:
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)


def test_a_disk_without_room_is_told_and_loses_nothing(tmp_path: Path) -> None:
    """While rows are written, and when they are committed, which the engine tells in another way."""
    state = opened(tmp_path)
    state.execute("CREATE TABLE work.t AS SELECT 1 AS n")
    with no_larger_files(1_000_000):
        for rows in (300_000, 30_000, 30_000):
            with pytest.raises(OperatorError, match="cannot be read or written: File too large"):
                _write(state, rows)
        assert state.rows("SELECT sum(n) FROM work.t") == [(1,)]
    _write(state, 30_000)
    state.close()
    again = opened(tmp_path)
    assert again.set_aside is None
    assert again.rows("SELECT count(*) FROM work.t") == [(30_001,)]
    again.close()


def _write(state: ViewState, rows: int) -> None:
    with state.transaction():
        state.execute("DROP TABLE IF EXISTS work.u")
        state.execute(f"CREATE TABLE work.u AS SELECT range AS n, md5(range::VARCHAR) AS v FROM range({rows})")
        state.execute(f"INSERT INTO work.t SELECT 0 FROM range({rows})")


FLOATS = Relation("public.f", {"k": Kind("float64"), "v": Kind("int64")}, ("k",))
ROWS = Relation("public.r", {"id": Kind("int64"), "g": Kind("float64")}, ("id",))


def view_of(name: str, sql: str, columns: dict[str, str], *key: str) -> View:
    relations = {each.name: each for each in (FLOATS, ROWS)}
    plan, text, match = plan_config(name, ViewConfig(sql=sql, key=key), relations, {})
    return View(plan, [(column, Kind(kind)) for column, kind in columns.items()], text, {}, match)


def test_a_row_under_another_text_of_its_key_comes_behind_the_delete_of_the_first(tmp_path: Path) -> None:
    """Another engine has written the key: for a copy both are one row, which the newest event must not delete."""
    copy = view_of("copy", "SELECT k, v FROM public.f", {"k": "float64", "v": "int64"}, "k")
    steps = Steps(tmp_path, [FLOATS, ROWS], [copy])
    steps.write("public.f", {(1e20,): (1,), (1.0,): (1,)})
    steps.step()
    for text in ("1.0E20", "9.0E20"):  # one sorts before the text that the engine writes, one behind it
        steps.state.keep_published("copy", [(f'{{"k":{text}}}', f'{{"k":{text},"v":1}}')])
        assert [op for _, op, *_ in steps.step(stale=True)] == ["d", "c", "c"]
    steps.close()


def test_a_decimal_has_a_zero_before_its_point(tmp_path: Path) -> None:
    """As the table's own topic has it; the embedded engine writes none where all digits are behind the point."""
    state = opened(tmp_path)
    columns = [("a", Kind("decimal", 3, 3)), ("b", Kind("decimal", 38, 38)), ("c", Kind("decimal", 4, 3))]
    cast = ", ".join(f"CAST(v AS DECIMAL({of.precision}, {of.scale})) AS {name}" for name, of in columns)
    rows = state.rows(f"SELECT {object_of(columns, 'r')} FROM (SELECT {cast} FROM (VALUES ('-.5'), ('0')) AS v(v)) r")
    found = [tuple(json.loads(row).values()) for (row,) in rows]
    assert found == [(f"{of}00", f"{of}{'0' * 37}", f"{of}00") for of in ("-0.5", "0.0")]
    state.close()


def test_minus_zero_is_zero(tmp_path: Path) -> None:
    """Of a key that changes its sign the row stays; a group has one key, whatever rows are in it and in what order."""
    copy = view_of("copy", "SELECT k, v FROM public.f", {"k": "float64", "v": "int64"}, "k")
    groups = view_of("groups", "SELECT g, count(*) AS n FROM public.r GROUP BY g", {"g": "float64", "n": "int64"}, "g")
    steps = Steps(tmp_path, [FLOATS, ROWS], [copy, groups])
    steps.write("public.f", {(0.0,): (1,)})
    steps.write("public.r", {(1,): (-0.0,)})
    assert steps.step() == [
        ("copy", "c", (0.0,), {"k": 0.0, "v": 1}),
        ("groups", "c", (0.0,), {"g": 0.0, "n": 1}),
    ]
    steps.write("public.f", {(0.0,): None})
    steps.commit += 1
    steps.write("public.f", {(-0.0,): (1,)})
    steps.write("public.r", {(2,): (0.0,)})
    (event,) = steps.step()
    assert event == ("groups", "u", (0.0,), {"g": 0.0, "n": 2})
    assert steps.state.rows(f"SELECT v FROM {place('before', 'public.f')}") == [(1,)]
    steps.write("public.f", {(-0.0,): (2,)})
    steps.write("public.r", {(1,): None})
    found = steps.step()
    assert [str(key) for _, _, key, _ in found] == ["(0.0,)", "(0.0,)"]
    assert [row for *_, row in found] == [{"k": 0.0, "v": 2}, {"g": 0.0, "n": 1}]
    steps.close()


def test_the_earliest_event_of_a_stream_counts_in_whatever_order_they_are_read(tmp_path: Path) -> None:
    state = opened(tmp_path)
    columns = [("moment", Kind("timestamp_micros")), ("v", Kind("string"))]
    stream = SourceTable(TableUse("stream.s", Way.EVENTS), columns, ("moment",))
    with state.transaction():
        state.prepare_table(stream.relation, columns, (), stream.key)
    taken = [("30", 1, "a"), ("10", 1, "a"), ("20", 1, "b"), ("15", 2, "c"), ("05", 3, "d")]
    for position, micros, value in taken:
        state.execute(
            f"INSERT INTO {place('pending', stream.relation)} ({KEY}, {POSITION}, {OP}, {SOURCE_MS}, moment, v) "
            "VALUES ('2026-01-01T00:00:00.000', ?, 'c', 0, make_timestamp(?), ?)",
            [position, micros, value],
        )
        find_changes(stream, state, limit="", clock_ms=None, reload=False)
        state.execute(
            f"DELETE FROM {place('before', stream.relation)} b WHERE EXISTS "
            f"(SELECT 1 FROM {place('changed', stream.relation)} c WHERE c.moment = b.moment)"
        )
        state.execute(
            f"INSERT INTO {place('before', stream.relation)} BY NAME SELECT * FROM {place('coming', stream.relation)}"
        )
        move_on(stream, state)
        state.execute(f"DELETE FROM {place('pending', stream.relation)}")
    found = state.rows(f"SELECT epoch_us(moment), v FROM {place('before', stream.relation)} ORDER BY 1")
    assert found == [(1, "a"), (2, "c"), (3, "d")]
    state.close()


def test_a_time_behind_the_year_9999_is_not_late_and_one_before_our_era_is(tmp_path: Path) -> None:
    """Of two events of one key it was compared in Python, which has no such instants."""
    state = opened(tmp_path)
    use = TableUse("public.s", Way.STREAM, "at", 60_000)
    table = SourceTable(use, [("id", Kind("int64")), ("at", Kind("timestamp_micros")), ("v", Kind("int64"))], ("id",))
    with state.transaction():
        state.prepare_table(table.relation, table.columns, (), table.key)
    for key, year in enumerate(("12000-01-01", "0044-03-15 (BC)")):
        for v in (1, 2):
            state.execute(
                f'INSERT INTO {place("pending", table.relation)} ({KEY}, {POSITION}, {OP}, {SOURCE_MS}, id, "at", v) '
                f"VALUES ('{key}', '{v}', 'c', 0, {key}, TIMESTAMP '{year}', {v})"
            )
    assert find_changes(table, state, limit="9", clock_ms=None, reload=False) == 2
    assert state.rows(f"SELECT id, v FROM {place('coming', table.relation)}") == [(0, 2)]
    state.close()


def test_as_many_columns_as_a_table_has(tmp_path: Path) -> None:
    columns = {"id": Kind("int64"), **{f"c{number}": Kind("int64") for number in range(1_000)}}
    wide = Relation("public.wide", columns, ("id",))
    plan, text, match = plan_config(
        "w", ViewConfig(sql="SELECT * FROM public.wide", key=("id",)), {wide.name: wide}, {}
    )
    steps = Steps(tmp_path, [wide], [View(plan, list(columns.items()), text, {}, match)])
    steps.write("public.wide", {(1,): range(1_000)})
    ((_, op, key, row),) = steps.step()
    assert (op, key, list(row), row["c999"]) == ("c", (1,), list(columns), 999)
    steps.close()
