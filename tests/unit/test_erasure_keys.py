"""Which records are of a key that a person has written."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest
from click.testing import CliRunner
from kafka import errors as codes

import cdc.cli.repairing.erase as command
from cdc.config.kafka_config import KafkaConfig
from cdc.formats.reading import PLAIN
from cdc.model.audit import Act
from cdc.model.errors import ConfigError, OperatorError
from cdc.rules.routes import NO_ROUTES
from sinks.erasure import compaction, own_settings
from sinks.erasure.erase import NEEDED, Found, _Erasure
from sinks.erasure.keys import WantedKey
from sinks.erasure.places import Place
from sinks.producer.retries import ABSENT, RefusedError


@pytest.mark.parametrize(
    ("written", "recorded", "same"),
    [
        ('{"id": 5}', b'{"id":5}', True),
        ("5", b'{"id":5}', True),
        ("5", b'{"id":"5"}', True),
        ("5", b'{"id":55}', False),
        ("a b", b'{"name":"a b"}', True),
        ('{"b": 2, "a": "x"}', b'{"a":"x","b":2}', True),
        ('{"a": "x"}', b'{"a":"x","b":2}', False),
        ('{"n": 1.10}', b'{"n":"1.10"}', True),
        ('{"n": 1.10}', b'{"n":"1.1"}', False),
        ("1.5", b'{"f":1.5}', True),
        ("1e3", b'{"f":1000.0}', True),
        ('{"f": 1.50}', b'{"f":1.5}', True),
        ('{"f": 1e20}', b'{"f":1e20}', True),
        ('{"f": [1.0, 2]}', b'{"f":[1.00,2]}', True),
        ('{"f": "None", "g": 1}', b'{"f":null,"g":1}', False),
        ("true", b'{"b":1}', False),
        ("true", b'{"b":true}', True),
        ('{"n": 12345678901234567890123}', b'{"n":"12345678901234567890123"}', True),
        ('{"f": 1.5}', b'{"f":1.5}', True),
        ("NaN", b'{"n":"NaN"}', True),
        ("5", b'{"id":5,"tenant":5}', False),
        ("5", b"5", False),
        ("5", b"\x00\x00\x00\x00\x01\x0a", False),
        ("5", None, False),
    ],
)
def test_a_record_is_of_the_key(written: str, recorded: bytes | None, same: bool) -> None:
    assert WantedKey(written).is_key(recorded) is same


@pytest.mark.parametrize(
    ("written", "recorded", "alike"),
    [
        ("1.5", b'{"n":"1.50"}', True),
        ("1e1", b'{"n":"10.00"}', True),
        ("9007199254740993.0", b'{"n":9007199254740993}', True),
        ("9007199254740993.0", b'{"n":9007199254740992}', False),
        ("A0EE", b'{"u":"a0ee"}', True),
        ("abc", b'{"c":"abc       "}', True),
        ('{"b": "X", "a": 1}', b'{"a":"1","b":"x"}', True),
        ('{"b": "X", "a": 1}', b'{"a":2,"b":"x"}', False),
        ('{"b": "x"}', b'{"a":1,"b":"x"}', False),
        ("abd", b'{"c":"abc"}', False),
        ("NaN", b'{"n":"nan"}', True),
        ("7", b'{"code":"007"}', False),
        ("1_0", b'{"n":10}', False),
        ("007", b'{"n":7}', True),
        ("+7", b'{"n":7}', True),
        ('{"a": "01", "b": "x"}', b'{"a":1,"b":"x"}', True),
        ("true", b'{"n":1}', False),
        ("5", b"5", False),
        ("5", b"", False),
    ],
)
def test_a_key_that_may_be_meant(written: str, recorded: bytes, alike: bool) -> None:
    """What the topic does not have as it is written may be there all the same, and its row with it."""
    assert not WantedKey(written).is_key(recorded) or not alike
    assert WantedKey(written).is_like(recorded) is alike


@pytest.mark.parametrize("written", ["", "null", "{}", "[]", "[5]"])
def test_what_is_no_key_is_refused(written: str) -> None:
    with pytest.raises(ConfigError, match="no key"):
        WantedKey(written)


def test_a_command_names_a_key_as_the_source_prints_it() -> None:
    assert WantedKey('{"tenant": 7, "id": 2}').is_texts(["7", "2"])
    assert WantedKey("x").is_texts(["x"])
    assert not WantedKey("x").is_texts(["x", "y"])


@pytest.mark.parametrize(
    ("written", "known", "refused"),
    [
        ("5", [["id"]], False),
        ('{"id": 5}', [["id"]], False),
        ('{"ID": 5}', [["id"]], True),
        ('{"id": 5, "tenant": 1}', [["id"]], True),
        ("5", [["tenant", "id"]], True),
        ('{"id": 5}', [["tenant", "id"]], True),
        ('{"id": 5, "tenant": 1}', [["tenant", "id"]], False),
        ("5", [["id"], ["tenant", "id"]], False),
        ("5", [], False),
    ],
)
def test_a_key_of_other_columns_is_refused(written: str, known: list[list[str]], refused: bool) -> None:
    """A misspelt column would find nothing, and the answer would be that nothing is there."""
    keys: list[dict[str, dict[str, Any]]] = [{name: {"kind": "int32"} for name in key} for key in known]
    if refused:
        with pytest.raises(ConfigError, match=r"--key: table public\.people has the key"):
            WantedKey(written).must_be_of("public.people", keys, "cdc tail")
    else:
        WantedKey(written).must_be_of("public.people", keys, "cdc tail")


@pytest.mark.parametrize(
    ("kind", "type_", "fit", "misfit"),
    [
        ("date", "date", ["19782", "-5", "infinity", "0000-00-00", "2024-02-30"], ["2024-02-29", "1.2.2024", "x"]),
        ("timestamp_micros", "timestamp", ["1709210096100000", "-infinity"], ["2024-02-29 12:00:00", "now"]),
        ("timestamp_millis", "datetime(3)", ["1709210096100", "0000-00-00 00:00:00"], ["2024-02-29T12:00:00"]),
        ("timestamptz", "timestamptz", ["2024-02-29T12:00:00.500000Z", "infinity", "-0043-03-15T00:00:00Z"],
         ["2024-02-29 12:00:00+00", "2024-02-29T12:00:00+01:00", "1709210096"]),
        ("time_micros", "time", ["43200000000"], ["12:00:00"]),
        ("timetz", "timetz", ["23:30:00Z"], ["23:30:00+00"]),
        ("interval", "interval", ["P1Y2M-3DT4H5M6.789S", "PT0S", "infinity"], ["1 day"]),
        ("bytes", "bytea", ["AP8Q", ""], [r"\x00ff10", "AP8"]),
        ("bytes", "binary(16)", ["Ee6tTyEfTlSCy2PrVuBFSg=="], ["11eead4f211f4e5482cb63eb56e0454a", "0x11ee"]),
        ("boolean", "boolean", ["true", "false"], ["t", "1"]),
        ("int32", "integer", ["5", " 5", "007", "+7", "1e3"], ["five", "true", "5/6", "0x5"]),
        ("decimal", "numeric", ["1.50", "NaN", "-1e5", ".5"], ["1,50", "$1.50"]),
        ("float64", "double precision", ["1.5", "1e20", "-Infinity"], ["1,5"]),
        ("string", "uuid", ["11EEAD4F-211f-4e54-82cb-63eb56e0454a"], ["11eead4f211f4e5482cb63eb56e0454a"]),
        ("bits", "bit(3)", ["101"], ["5"]),
        ("string", "text", ["2024-02-29", r"\x", "t"], []),
    ],
)  # fmt: skip
def test_a_key_in_another_form_than_that_of_events_is_refused(
    kind: str, type_: str, fit: list[str], misfit: list[str]
) -> None:
    """A date as SQL has it found nothing, and the log that had the row's events was told as gone, with exit code 0."""
    column = {"kind": kind, "type": type_}
    for written in fit:
        wanted = WantedKey(json.dumps({"k": written, "id": 1}))
        wanted.must_be_of("s.t", [{"k": column, "id": {"kind": "int64"}}], "cdc tail")
        if written and kind != "boolean":
            WantedKey(written).must_be_of("s.t", [{"k": column}], "cdc tail")
            WantedKey(json.dumps(written)).must_be_of("s.t", [{"k": column}], "cdc tail")  # as JSON has a text
    for written in misfit:
        for wanted, key in ((WantedKey(written), ["k"]), (WantedKey(json.dumps({"id": 1, "k": written})), ["id", "k"])):
            now = {name: column if name == "k" else {"kind": "int64"} for name in key}
            with pytest.raises(ConfigError, match=r"^--key: column k of table s\.t is .* in events, and no") as caught:
                wanted.must_be_of("s.t", [now], "cdc tail FILE")
            assert caught.value.hint == "as cdc tail FILE shows it"
            wanted.must_be_of("s.t", [{name: {"kind": "string"} for name in key}, now], "cdc tail")  # as it was before


@pytest.mark.parametrize(("url", "refused"), [("postgresql://h/d", True), ("sqlite:///d.db", False)])
def test_a_type_of_sqlite_says_nothing_of_the_form(url: str, refused: bool) -> None:
    """There a column that is declared as uuid has texts of any form, and a row under one could not be erased."""
    erasure = object.__new__(_Erasure)
    erasure._config = cast("Any", SimpleNamespace(source=SimpleNamespace(url=url)))
    erasure.topic = "p.main.t"
    column = {"name": "id", "type": "uuid", "kind": "string"}
    erasure._described = lambda: [{"topic": "p.main.t", "columns": [column], "key": ["id"]}]  # type: ignore[method-assign]
    wanted = WantedKey("11eead4f211f4e5482cb63eb56e0454a")
    with pytest.raises(ConfigError, match="a uuid of 36") if refused else nullcontext():
        wanted.must_be_of("main.t", erasure._keys(), "cdc tail")


@pytest.mark.parametrize(
    ("letter", "verdict"),
    [
        (b'{"schema":"s","table":"t","key":null}', "kept"),
        (b'{"schema":"s","table":"other","key":null}', "gone"),
        (b"not of a connector", "kept"),
    ],
)
def test_a_dead_letter_without_a_key_may_be_of_the_row(letter: bytes, verdict: str) -> None:
    """It holds the whole row, and no key by which it is found: that nothing is there is not known."""
    erasure = object.__new__(_Erasure)
    erasure._key, erasure._table, erasure._reading, erasure._routes = WantedKey("5"), "s.t", PLAIN, NO_ROUTES
    record = SimpleNamespace(key=lambda: b"null", value=lambda: letter, partition=lambda: 0, offset=lambda: 0)
    erasure._records = lambda *_: iter([record])  # type: ignore[method-assign, assignment, return-value, misc]
    erasure._compaction = cast("Any", SimpleNamespace(settings=lambda _: {}))
    found = erasure._found("p.dead-letter-c")
    assert erasure._log("p.dead-letter-c", found, 0).verdict == verdict


@pytest.mark.parametrize(
    ("keys", "begins", "retention", "verdict"),
    [
        ("a 5 . a .", 3, "-1", "kept"),  # the other row's event may be in one file with the key's
        ("a 5 . a .", 3, "86400000", "will be gone"),
        ("a . a 5 .", 5, "-1", "will be gone"),  # with the mark of the transaction, which is in the file, too
        ("5 . a 5 .", 5, "-1", "will be gone"),
    ],
)
def test_a_log_is_cut_where_its_file_goes(keys: str, begins: int, retention: str, verdict: str) -> None:
    """A broker removes a file when all of it lies before the cut: told as gone, one within it stayed for ever."""
    erasure, cuts = object.__new__(_Erasure), list[tuple[str, int, int]]()
    erasure._key, erasure._table, erasure._reading, erasure._routes = WantedKey("5"), "s.t", PLAIN, NO_ROUTES
    places = [(offset, key) for offset, key in enumerate(keys.split()) if key != "."]

    def records(*_: object) -> Iterator[Any]:
        left = [(offset, key) for offset, key in places if not cuts or offset >= begins]
        return iter([SimpleNamespace(key=lambda key=key: f'{{"id":"{key}"}}'.encode(), value=lambda: b"v",
                                     partition=lambda: 0, offset=lambda offset=offset: offset,
                                     timestamp=lambda: (1, 1000)) for offset, key in left])  # fmt: skip

    erasure._records = records  # type: ignore[method-assign, assignment]
    erasure._ends = lambda *_: {0: len(keys.split())}  # type: ignore[method-assign, assignment]
    erasure._checked_every_ms = lambda: 7  # type: ignore[method-assign]
    erasure._compaction = cast(
        "Any",
        SimpleNamespace(settings=lambda _: {"retention.ms": retention}, cut=lambda *of: cuts.append(of)),
    )
    before = erasure._ends("p.log.s.t")
    cut = erasure._cut("p.log.s.t", erasure._found("p.log.s.t"), before)
    assert cuts == [("p.log.s.t", 0, begins)]
    alone = all(erasure._ends("p.log.s.t")[partition] == at for partition, at in cut.items())
    assert erasure._cut_log("p.log.s.t", 0, alone=alone).verdict == verdict


@pytest.mark.parametrize(("recorded", "verdict"), [(b'{"n":"1.50"}', "kept"), (b'{"n":"1.51"}', "will be gone")])
def test_a_row_under_another_spelling_does_not_pass_for_erased(recorded: bytes, verdict: str) -> None:
    """The key 1.5 of a numeric(10,2) found nothing, and the command ended well while the row was there."""
    erasure = object.__new__(_Erasure)
    erasure._key, erasure._table, erasure._reading, erasure._routes = WantedKey("1.5"), "s.t", PLAIN, NO_ROUTES
    erasure.topic = "p.s.t"
    erasure._records = lambda *_: iter([SimpleNamespace(key=lambda: recorded)])  # type: ignore[method-assign, assignment, return-value, misc]
    place = erasure._not_found(Place("topic p.s.t", "will be gone", "no record has its values", 7))
    assert place.verdict == verdict
    assert "no record of this key" in place.what
    assert "1.5" not in place.what


def test_what_is_said_on_the_way_names_the_given_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def erased(*_: object, say: Callable[[str], None], **__: object) -> list[Place]:
        say("cdc tail CONNECTOR.yaml --table s.t")
        return [Place("source", "cannot be proved", "")]

    monkeypatch.setattr(command, "load_connector", lambda _: None)
    monkeypatch.setattr(command.registry, "part", lambda _: erased)
    done = CliRunner().invoke(command.erase, ["my shop.yaml", "--table", "s.t", "--key", "5"])
    assert (done.exit_code, done.stderr) == (0, "cdc tail 'my shop.yaml' --table s.t\n")


def test_what_comes_while_a_log_is_looked_at_is_not_cut() -> None:
    """The end is that from before it was read; the key's own event may have come behind that."""
    erasure, cuts = object.__new__(_Erasure), list[tuple[str, int, int]]()
    erasure._compaction = cast("Any", SimpleNamespace(cut=lambda *of: cuts.append(of)))
    erasure._cut("p.log.s.t", Found(last={0: (3, 0), 1: (9, 0)}, behind={}), {0: 5, 1: 5})
    assert cuts == [("p.log.s.t", 0, 5), ("p.log.s.t", 1, 10)]


def test_what_topics_had_is_read_back_from_the_audit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Noted again only where it is another; a record of anybody else's says nothing."""
    acts: list[Act] = []
    monkeypatch.setattr(own_settings, "note", lambda *of: acts.append(of[-1]))
    noted: dict[str, own_settings.Own] = {}
    for own, says in (
        ({"p.t": {"max": "7", "min": None}, "p.u": {"max": None}}, ["p.t max=7"]),
        ({"p.t": {"max": "7", "min": None}}, None),
        ({"p.t": {"max": None, "min": None}}, ["p.t none"]),
    ):
        before = len(acts)
        own_settings.keep(KafkaConfig(bootstrap_servers="nowhere:1", topic_prefix="p"), "c", own, noted)
        assert [act.about["settings"] for act in acts[before:]] == ([] if says is None else [says])
        noted |= own_settings._read(acts[-1].to_bytes(connector="c", position=""))
        assert noted == {"p.t": {name: value for name, value in own["p.t"].items() if value is not None}}
    for other in (None, b"x", b"[]", b'{"action":"erase","about":{"settings":3}}', b'{"action":"pause","about":{}}'):
        assert own_settings._read(other) == {}


@pytest.mark.parametrize(
    ("topic", "missing", "cut_logs", "refused"),
    [
        ("p.s.t", "ALTER_CONFIGS", False, True),
        ("p.position-c", "WRITE", False, True),
        ("p.log.s.t", "ALTER_CONFIGS", False, False),
        ("p.log.s.t", "DELETE", False, False),
        ("p.log.s.t", "DELETE", True, True),
        ("p.log.s.t", "READ", False, True),
    ],
)
def test_a_right_that_is_missing_is_told_before_anything_is_done(
    topic: str, missing: str, cut_logs: bool, refused: bool
) -> None:
    """The erasure has no more than rights here: one that goes on misses the key, which it asks first."""
    every = NEEDED | {"DELETE"}
    erasure = object.__new__(_Erasure)
    erasure.logs = ["p.log.s.t"]
    erasure._allowed = {
        of: every - ({missing} if of == topic else set()) for of in ("p.s.t", "p.position-c", "p.log.s.t")
    }
    told = rf"^topic {topic}: this user may not {missing}; nothing was changed"
    error, match = (OperatorError, told) if refused else (AttributeError, "no attribute '_key'$")
    with pytest.raises(error, match=match):
        erasure.run(cut_logs=cut_logs, within_s=1)


@pytest.mark.parametrize(
    ("code", "said"), [(ABSENT, "a.topic was deleted meanwhile"), (48, "refused to close segments")]
)
def test_a_topic_that_goes_while_it_is_compacted_is_told_as_that(
    monkeypatch: pytest.MonkeyPatch, code: int, said: str
) -> None:
    """No right of a user is in its way."""
    refused = SimpleNamespace(
        begin_epoch=lambda _: None, add_partitions=lambda _: (_ for _ in ()).throw(RefusedError(code))
    )
    monkeypatch.setattr(compaction, "Coordinator", lambda *_, **__: refused)
    sink = KafkaConfig(bootstrap_servers="127.0.0.1:1", topic_prefix="p")
    with pytest.raises(OperatorError, match=said):
        compaction.Compaction(sink, "c").close_segments({"a.topic": [0]})


class Markers:
    """A coordinator whose first commits are refused."""

    def __init__(self, *codes_given: int) -> None:
        self.left, self.commits = list(codes_given), 0

    def __call__(self, *_: Any, **__: Any) -> Markers:
        return self

    def begin_epoch(self, _: float) -> None: ...

    def add_partitions(self, _: Any) -> None: ...

    def commit(self) -> None:
        self.commits += 1
        if self.left:
            raise RefusedError(self.left.pop(0))


FENCING = (codes.ProducerFencedError.errno, codes.InvalidProducerEpochError.errno, codes.UnknownError.errno)


def closing(monkeypatch: pytest.MonkeyPatch, *refused: int) -> tuple[compaction.Compaction, Markers]:
    markers = Markers(*refused)
    monkeypatch.setattr(compaction, "Coordinator", markers)
    monkeypatch.setattr(compaction.time, "sleep", lambda _: None)
    return compaction.Compaction(KafkaConfig(bootstrap_servers="127.0.0.1:1", topic_prefix="p"), "c"), markers


def test_erasures_at_the_same_moment_do_not_end_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each fences the others, and appends its markers again."""
    found, markers = closing(monkeypatch, *FENCING)
    found.close_segments({"a.topic": [0]})
    assert markers.commits == 1 + len(FENCING)
    found, _ = closing(monkeypatch, *(FENCING[:1] * 100))
    with pytest.raises(OperatorError, match="other erasures of connector c keep this one") as told:
        found.close_segments({"a.topic": [0]})
    assert "WRITE" not in (told.value.hint or "")


def test_settings_of_a_topic_that_another_erasure_changes_meanwhile_are_not_taken_for_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It notes them first, and then changes them: who sees what it has changed looks into the notes behind that."""
    found, _ = closing(monkeypatch)
    own, notes = {"min.compaction.lag.ms": "604800000"}, dict[str, Any]()
    altered: list[Any] = []

    def described(topic: str) -> dict[str, Any]:
        notes[topic] = own  # the other one comes before this look
        of = compaction._OF_THE_TOPIC
        return {name: SimpleNamespace(value=value, source=of) for name, value in compaction._COMPACTED.items()}

    monkeypatch.setattr(own_settings, "noted", lambda *_: dict(notes))
    monkeypatch.setattr(own_settings, "keep", lambda *_: None)
    monkeypatch.setattr(found, "_described", described)
    monkeypatch.setattr(found, "_alter", lambda _, given: altered.append(given))
    with found.hurried(compacted=["a.topic"], logs=[]):
        pass
    assert altered == [compaction._COMPACTED, {"max.compaction.lag.ms": None, **own}]


def test_what_another_erasure_has_set_back_is_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end would have the broker compact nothing more, and this one wait for that in vain."""
    found, markers = closing(monkeypatch)
    hurry = dict(compaction._COMPACTED)
    settings = {"a.topic": dict(hurry), "b.topic": {**hurry, "max.compaction.lag.ms": "9223372036854775807"}}
    found._hurry = dict.fromkeys(settings, hurry)
    monkeypatch.setattr(found, "settings", settings.__getitem__)
    monkeypatch.setattr(found, "_alter", lambda topic, given: settings[topic].update(given))
    assert found.slowed(["a.topic", "b.topic"]) == ["b.topic"]
    found.close_segments({"a.topic": [0], "b.topic": [0]})
    assert not found.slowed(settings)
    assert markers.commits == 1
