"""Topics are asked for in requests that a controller takes."""

from __future__ import annotations

import logging
import socket
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from kafka.errors import KafkaConnectionError, NodeNotReadyError, for_code

from cdc.model.errors import CdcError, OperatorError, RetryableError, TopicError
from sinks.client import patient_admin
from sinks.topics import making
from sinks.topics.topics import Existing, Topics, Wanted

_EXISTS, _POLICY, _REPLICAS, _FORBIDDEN, _BUSY, _QUOTA, _UNKNOWN = 36, 44, 38, 29, 7, 89, 3


class Controller:
    """Takes no request that makes more than 10,000 changes, as KRaft's; `quota`: so many topics a request.

    `fetches` is its newest version of that request.
    """

    def __init__(self, refuses: dict[str, int] | None = None, quota: int | None = None, fetches: int = 15) -> None:
        self.fetches = fetches
        self.refuses = refuses or {}
        self.quota = quota
        self.made: list[str] = []
        self.requests = 0

    def create_topics(self, specs: dict[str, Any], **how: Any) -> dict[str, Any]:
        self.requests += 1
        changes = sum(1 + len(of["configs"]) + of["num_partitions"] for of in specs.values())
        codes = {name: _POLICY if changes > 10_000 else self.refuses.get(name, 0) for name in specs}
        if self.quota is not None:
            codes |= dict.fromkeys([*codes][self.quota :], _QUOTA)
        if not how["validate_only"]:
            self.made += [name for name, code in codes.items() if not code]
        return {"topics": [{"name": n, "error_code": c, "error_message": None} for n, c in codes.items()]}

    def list_topics(self) -> list[str]:
        return []

    def api_versions(self) -> dict[int, tuple[int, int]]:
        return {0: (0, 99), 1: (0, self.fetches)}

    def describe_topics(self, names: list[str]) -> list[dict[str, Any]]:
        return [{"name": name, "error_code": self.refuses.get(name, _UNKNOWN)} for name in names]

    def wait_for_topics(self, names: list[str], **_: Any) -> None:
        assert set(names) - set(self.refuses) <= set(self.made)


def topics_at(controller: Controller) -> Topics:
    topics = object.__new__(Topics)
    topics._servers, topics._options = "broker:9092", {"sasl.username": "cdc"}
    topics._admin = patient_admin.PatientAdmin(controller)
    return topics


@pytest.mark.parametrize("partitions", [1, 6, 400, 9_000])
def test_thousands_of_tables(partitions: int) -> None:
    """2,000 tables of one connector: one request for all would be refused as excessively large."""
    controller = Controller()
    number = 2_000 if partitions < 400 else 40
    wanted = [Wanted.events(f"p.public.t{n}", partitions) for n in range(number)]
    assert topics_at(controller).rehearse(wanted, replication_factor=None) == []
    assert controller.made == []
    topics_at(controller).create(wanted, replication_factor=None)
    assert controller.made == [w.name for w in wanted]
    assert controller.requests <= 2 * (number * (4 + partitions) // 500 + 1)


def test_one_that_somebody_else_has_just_made_keeps_no_other_from_being_made(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = [Wanted.events(f"p.public.t{n}", 100) for n in range(100)]
    controller, checked = Controller({wanted[0].name: _EXISTS}), list[int]()
    monkeypatch.setattr(Topics, "check", lambda _, of: checked.append(len(of)))
    topics_at(controller).create(wanted, replication_factor=None)
    assert len(controller.made) == 99
    assert checked == [100]


@pytest.mark.parametrize(
    ("code", "hint"),
    [(_POLICY, "sink.topic_config"), (_REPLICAS, "sink.replication_factor"), (_FORBIDDEN, "CREATE"), (_BUSY, None)],
)
def test_a_refusal_names_one_topic_and_what_to_do(code: int, hint: str | None) -> None:
    controller = Controller({"p.public.t7": code})
    with pytest.raises(CdcError) as found:
        topics_at(controller).create([Wanted.events(f"p.public.t{n}", 6) for n in range(20)], replication_factor=None)
    if hint is None:
        assert isinstance(found.value, RetryableError)
        return
    assert isinstance(found.value, OperatorError)
    assert "p.public.t7" in str(found.value)
    assert "t6" not in str(found.value)
    assert for_code(code).__name__ in str(found.value)
    assert hint in (found.value.hint or "")


def test_a_quota_is_waited_for(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Each request makes some of the topics: the others are asked for again, not all from the start."""
    monkeypatch.setattr(making, "_QUOTA_ASKED_S", 0.001)
    controller, wanted = Controller(quota=7), [Wanted.events(f"p.public.t{n}", 3) for n in range(30)]
    with caplog.at_level(logging.WARNING):
        topics_at(controller).create(wanted, replication_factor=None)
    assert controller.made == [w.name for w in wanted]
    assert controller.requests == 5
    assert caplog.text.count("controller_mutation_rate") == 1
    assert topics_at(controller).rehearse(wanted, replication_factor=None) == []


def test_a_quota_that_lets_nothing_through_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As what passes, also before a connector has run once; another session asks for the rest."""
    monkeypatch.setattr(making, "_QUOTA_ASKED_S", 0.001)
    monkeypatch.setattr(making, "_QUOTA_WAITED_S", 0.01)
    with pytest.raises(RetryableError, match="a quota of the cluster") as found:
        topics_at(Controller(quota=0)).create([Wanted.events("p.public.t", 3)], replication_factor=None)
    assert found.value.at_start


def test_a_topic_that_is_not_shown_is_not_taken_for_one_that_is_missing() -> None:
    """What it holds would be told as lost, and a position that is not seen as none."""
    wanted = [Wanted.events(f"p.public.t{n}", 3) for n in range(3)]
    topics = topics_at(Controller({wanted[1].name: _FORBIDDEN}))
    with pytest.raises(OperatorError, match=r"p\.public\.t1: this user may not DESCRIBE it"):
        topics.check(wanted)
    assert [w.name for w in topics_at(Controller()).check(wanted)] == [w.name for w in wanted]


RIGHT = {"cleanup.policy": "compact", "delete.retention.ms": "604800000", "min.insync.replicas": "1"}


@pytest.mark.parametrize(
    ("settings", "allowed", "partitions", "said", "hint"),
    [
        (
            {},
            ("READ", "WRITE", "DESCRIBE"),
            1,
            "may not read its settings (DESCRIBE_CONFIGS)",
            "--add --allow-principal User:cdc --operation DescribeConfigs --topic p.public.t  # or",
        ),
        ({**RIGHT, "cleanup.policy": "delete"}, (), 1, "has cleanup.policy=delete", "cleanup.policy=compact"),
        ({**RIGHT, "delete.retention.ms": "86400000"}, (), 1, "has delete.retention.ms=86400000", "=604800000"),
        ({**RIGHT, "min.insync.replicas": "3"}, (), 1, "has min.insync.replicas=3, and 2 replicas", "replicas=1"),
        (
            {**RIGHT, "message.timestamp.before.max.ms": "0", "message.timestamp.after.max.ms": "3600000"},
            (),
            1,
            "has message.timestamp.before.max.ms=0: it takes no record, and no end of a transaction",
            "--add-config message.timestamp.before.max.ms=9223372036854775807",
        ),
        (
            {**RIGHT, "message.timestamp.difference.max.ms": "1000"},  # of Kafka 2.8
            (),
            1,
            "has message.timestamp.difference.max.ms=1000: it takes no record",
            "--add-config message.timestamp.difference.max.ms=9223372036854775807",
        ),
        (RIGHT, ("READ", "DESCRIBE"), 1, "this user may not WRITE to it", "--operation Write --topic"),
        (RIGHT, ("READ", "WRITE", "DESCRIBE"), 2, "has 2 partitions, 1 are asked for", "sink.partitions: 2"),
    ],
)
def test_what_a_topic_is_refused_for(
    settings: dict[str, str], allowed: tuple[str, ...], partitions: int, said: str, hint: str
) -> None:
    """A table's is its table's matter alone, and so is its log; the connector's own are the matter of all tables."""
    topics = topics_at(Controller())
    topics.smallest_limit, topics._spread = 1_000_000, lambda *_: 0
    found = Existing(partitions, 2, frozenset(allowed), settings)
    wanted = Wanted.events("p.public.t", 1)
    (refused,) = topics._refusals([wanted], {wanted.name: found})
    assert isinstance(refused, TopicError)
    assert (refused.topic, said in refused.message, hint in (refused.hint or "")) == ("p.public.t", True, True)
    (all_of_them,) = topics._refusals([replace(wanted, of="")], {wanted.name: found})
    assert not isinstance(all_of_them, TopicError)
    (of_log,) = topics._refusals([replace(wanted, name="p.log.public.t")], {"p.log.public.t": found})
    assert isinstance(of_log, TopicError)
    assert (of_log.topic, "topic p.log.public.t" in of_log.message) == ("p.public.t", True)


@pytest.mark.parametrize(("fetches", "refused"), [(15, True), (16, False), (17, False)])
def test_fewer_replicas_than_a_cluster_asks_for(*, fetches: int, refused: bool) -> None:
    """A broker before 3.7 takes no record then; a later one does, and such a topic once stopped each later start."""
    topics, wanted = topics_at(Controller(fetches=fetches)), Wanted.events("p.public.t", 1)
    topics.smallest_limit = 1_000_000
    found = Existing(1, 1, frozenset(), {**RIGHT, "min.insync.replicas": "2"})
    assert bool(list(topics._refusals([wanted], {wanted.name: found}))) is refused


@pytest.mark.parametrize("allowed", [(), ("WRITE", "DESCRIBE", "DESCRIBE_CONFIGS")])
def test_settings_that_are_not_there_for_a_moment(allowed: tuple[str, ...]) -> None:
    """As of a topic that is being deleted: nothing is known of it, and no table is left out for that."""
    topics, wanted = topics_at(Controller()), Wanted.events("p.public.t", 1)
    with pytest.raises(RetryableError, match=r"topic p\.public\.t has no settings for now"):
        list(topics._refusals([wanted], {wanted.name: Existing(1, 1, frozenset(allowed), {})}))


class Sent:
    """A client that has asked an address that it was given, and was sent on to another port."""

    def __init__(self, port: int, first: int) -> None:
        self.config = {"bootstrap_servers": [f"127.0.0.1:{first}"]}
        brokers = [SimpleNamespace(host="127.0.0.1", port=port)]
        self._manager = SimpleNamespace(_conns={}, cluster=SimpleNamespace(brokers=lambda: brokers))

    def list_topics(self) -> list[str]:
        raise KafkaConnectionError


def test_a_broker_that_sends_clients_out_of_reach_is_named() -> None:
    """As one in a container does with those outside; the address in the file, which answers, was blamed.

    Where that does not answer either, all of Kafka is away: its listeners are right.
    """
    with closing(socket.create_server(("127.0.0.1", 0))) as there, closing(socket.socket()) as gone:
        gone.bind(("127.0.0.1", 0))  # and does not listen
        first, nowhere = there.getsockname()[1], gone.getsockname()[1]
        for sent, asked in ((first, nowhere), (first, first), (nowhere, nowhere), (nowhere, 7)):
            with pytest.raises(KafkaConnectionError):
                patient_admin.PatientAdmin(Sent(sent, asked)).list_topics()
        with pytest.raises(RetryableError, match=f"answers, and sends clients on to 127.0.0.1:{nowhere},"):
            patient_admin.PatientAdmin(Sent(nowhere, first)).list_topics()


@pytest.mark.parametrize(
    ("address", "parts"),
    [("h:1", ("h", 1)), ("[::1]:9093", ("::1", 9093)), ("h", ("h", 9092)), ("h:x", ("h:x", 9092))],
)
def test_the_host_and_the_port_of_a_broker(address: str, parts: tuple[str, int]) -> None:
    assert patient_admin._host_and_port(address) == parts


class Paused:
    """A client that a broker has told to pause, and that refuses what it is asked meanwhile."""

    def __init__(self, refusals: int, *, paused: bool) -> None:
        self.left = refusals
        conns = {1: SimpleNamespace(paused={"throttle"} if paused else set())}
        self._manager = SimpleNamespace(_conns=conns, cluster=SimpleNamespace(brokers=list))

    def list_topics(self) -> list[str]:
        self.left -= 1
        if self.left >= 0:
            raise NodeNotReadyError
        return ["t"]


def test_a_pause_that_a_quota_asks_for_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that is away is not: who asks is told at once."""
    monkeypatch.setattr(patient_admin, "_LOOK_S", 0.001)
    assert patient_admin.PatientAdmin(Paused(5, paused=True)).list_topics() == ["t"]
    for refusals, paused, waited_s in ((1, False, 60.0), (10**9, True, 0.01)):
        monkeypatch.setattr(patient_admin, "_WAITED_S", waited_s)
        with pytest.raises(NodeNotReadyError):
            patient_admin.PatientAdmin(Paused(refusals, paused=paused)).list_topics()
