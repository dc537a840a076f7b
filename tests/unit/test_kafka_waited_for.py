"""A job waits for Kafka where brokers, when asked, do not answer, and says what is so: tests/stores has real ones."""

from __future__ import annotations

import threading
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient
from pyspark.errors import PySparkException

from cdc.config.apply_config import ApplySource
from cdc.model.errors import CdcError, RetryableError
from cdc.model.meter import NO_JOB_METER, JobState
from cdc.telemetry.apply_meter import ApplyMeter
from cdc.telemetry.json_log import Place
from spark_apply.events.kafka.client import ForbiddenError, NoAnswerError, unreachable
from spark_apply.events.kafka.topics import why_unread
from spark_apply.job import away, job
from spark_apply.job.batch_loop import BatchLoop
from spark_apply.job.copies.set_aside import AsideCopies
from spark_apply.job.pace import JobFigures
from spark_apply.views import job as view_job

SOURCE = ApplySource(bootstrap_servers="k:1", topic_prefix="shop")
LATE = PySparkException(
    "java.util.concurrent.TimeoutException: Cannot fetch record for offset 7 in 120000 milliseconds"
)
LED, UNLED = SimpleNamespace(id=0, leader=SimpleNamespace(id=1)), SimpleNamespace(id=1, leader=None)


def brokers(monkeypatch: pytest.MonkeyPatch, answer: list[SimpleNamespace] | int) -> None:
    """Give each topic these partitions, or have each question fail."""

    def described(_admin: object, wanted: TopicCollection, **_: object) -> dict[str, Future[Any]]:
        told: Future[Any] = Future()
        if isinstance(answer, list):
            told.set_result(SimpleNamespace(partitions=answer))
        else:
            told.set_exception(KafkaException(KafkaError(answer)))
        return dict.fromkeys(["shop.a"], told)

    monkeypatch.setattr(AdminClient, "describe_topics", described)


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ([LED], None),
        (KafkaError.UNKNOWN_TOPIC_OR_PART, None),
        (KafkaError.TOPIC_AUTHORIZATION_FAILED, None),
        ([LED, UNLED], "Kafka: partitions have no leader: shop.a (1)"),
        (KafkaError._TIMED_OUT, "Kafka at k:1 does not answer (_TIMED_OUT)"),
    ],
)
def test_brokers_are_asked_why_spark_has_waited(
    monkeypatch: pytest.MonkeyPatch, answer: list[SimpleNamespace] | int, said: str | None
) -> None:
    brokers(monkeypatch, answer)
    found = why_unread(SOURCE, ["shop.a"])
    assert (found and found.message) == said
    quarantine: Any = SimpleNamespace(config=SimpleNamespace(source=SOURCE))
    assert AsideCopies({}, quarantine, print, False, containing=True).contains(LATE) is (said is None)


def test_a_partition_without_a_leader_is_no_broker_that_is_away() -> None:
    found = unreachable(SOURCE, KafkaException(KafkaError(KafkaError.LEADER_NOT_AVAILABLE)))
    assert isinstance(found, NoAnswerError)
    assert found.message == "Kafka at k:1: a partition has no leader (LEADER_NOT_AVAILABLE)"


def test_a_handshake_that_is_cut_may_pass() -> None:
    found = unreachable(SOURCE, KafkaException(KafkaError(KafkaError._SSL)))
    assert isinstance(found, NoAnswerError)
    assert found.message == "Kafka at k:1: no trusted TLS connection (_SSL)"


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (KafkaError.SASL_AUTHENTICATION_FAILED, "refuses the login"),
        (KafkaError.UNSUPPORTED_SASL_MECHANISM, "refuses the login"),
        (KafkaError._AUTHENTICATION, "refuses the login"),
        (KafkaError._INVALID_ARG, "does not take source.options"),
    ],
)
def test_a_login_that_is_refused_is_not_waited_for(monkeypatch: pytest.MonkeyPatch, code: int, said: str) -> None:
    """By a job whose password was changed while it runs: it ends, and says what to correct."""
    runs = list[Any]()
    store: Any = SimpleNamespace(steps=0, output=SimpleNamespace(sent=0), reached="", stopped={}, reading=frozenset())

    def follow(run: Any, **_: object) -> None:
        runs.append(run)
        run.store = store
        raise unreachable(SOURCE, KafkaException(KafkaError(code)))

    monkeypatch.setattr(view_job._Run, "follow", follow)
    stop: Any = SimpleNamespace(is_set=lambda: len(runs) > 5, wait=lambda _: len(runs) > 5)
    config: Any = SimpleNamespace(name="j", source=SOURCE)
    with pytest.raises(ForbiddenError, match=said) as ended:
        view_job.run_views(config, once=False, progress=print, stop=stop)
    assert (len(runs), "source.options" in f"{ended.value}") == (1, True)


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Give a job that has followed topics, and whose brokers are away; it waits no second."""

    def gone(_self: object) -> None:
        raise NoAnswerError("nobody answers", hint="is it up?")

    def made(lines: list[str], meter: Any, *, waits: bool, follows: bool) -> Any:
        monkeypatch.setattr(job._Job, "_choose", gone)
        config: Any = SimpleNamespace(name="j", source=SOURCE)
        one = job._Job(config, False, False, False, None, lines.append, threading.Event(), meter, waits)
        one._follows, one._start = follows, SimpleNamespace(applier=SimpleNamespace(batches=3))  # type: ignore[assignment]
        monkeypatch.setattr(one.stop, "wait", lambda _: False)
        return one

    return made


def test_a_job_that_waits_is_not_ready_and_says_so_again(rounds: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = list[str]()
    meter = ApplyMeter(SimpleNamespace(name="j", source=SOURCE), Place())  # type: ignore[arg-type]
    meter.becomes(JobState.FOLLOWING)
    waiting = rounds(lines, meter, waits=True, follows=True)
    assert waiting._round()
    assert waiting._round()
    told = "warning: nobody answers. The job waits, and asks again: nothing is applied meanwhile; is it up?"
    assert lines == [told]
    assert not meter.ready().ok
    assert meter.started().ok
    (counted,) = [of for family in meter.figures.collect() for of in family.samples if "errors_total" in of.name]
    assert (counted.labels["kind"], counted.value) == ("NoAnswerError", 2)
    monkeypatch.setattr(away, "_TOLD_EVERY_S", -1.0)
    assert waiting._round()
    assert len(lines) == 2


@pytest.mark.parametrize("begun", [True, False])
def test_a_job_that_has_applied_nothing_waits_too_once_its_query_was_begun(
    monkeypatch: pytest.MonkeyPatch, *, begun: bool
) -> None:
    """Spark's progress comes late, and what was asked for the query was answered: brokers that are away were there."""
    query = SimpleNamespace(isActive=False, exception=lambda: LATE, stop=lambda: None, lastProgress=None)

    def begin(*_: object) -> object:
        if not begun:
            raise NoAnswerError("nobody answers")
        return query

    brokers(monkeypatch, KafkaError._TIMED_OUT)
    monkeypatch.setattr(BatchLoop, "_begin", begin)
    applier: Any = SimpleNamespace(routes={}, counts={})
    start: Any = SimpleNamespace(config=SimpleNamespace(source=SOURCE), tell=print, applier=applier)
    parts: Any = [SimpleNamespace()] * 6
    figures = JobFigures(NO_JOB_METER, applier, *parts[:2])
    loop = BatchLoop(start, *parts, figures, once=False, stop=threading.Event())
    with pytest.raises(NoAnswerError):
        loop.run([])
    assert loop.follows is begun


def test_a_view_job_waits_around_it(rounds: Any) -> None:
    """Its state is opened again, too, as another copy of it may have gone on meanwhile."""
    with pytest.raises(CdcError, match="nobody answers"):
        rounds([], NO_JOB_METER, waits=False, follows=True)._round()


@pytest.mark.parametrize("error", [NoAnswerError("nobody answers"), RetryableError("the producer was lost")])
@pytest.mark.parametrize(("opened", "once"), [(True, False), (False, False), (True, True)])
def test_a_view_job_waits_once_its_state_was_open(
    monkeypatch: pytest.MonkeyPatch, error: CdcError, *, opened: bool, once: bool
) -> None:
    """What its runs have done is summed up; who runs it once is told at once."""
    runs, lines = list[Any](), list[str]()
    store: Any = SimpleNamespace(
        steps=2, output=SimpleNamespace(sent=5), reached="at", stopped={}, reading=frozenset(), close=lambda: None
    )

    def follow(run: Any, **_: object) -> None:
        runs.append(run)
        run.store = store if opened else None
        if len(runs) < 3:
            raise error

    monkeypatch.setattr(view_job._Run, "follow", follow)
    stop: Any = SimpleNamespace(is_set=lambda: False, wait=lambda _: False)
    config: Any = SimpleNamespace(name="j", source=SOURCE)
    if once or not opened:
        with pytest.raises(CdcError, match=error.message):
            view_job.run_views(config, once=once, progress=lines.append, stop=stop)
        return
    found = view_job.run_views(config, once=False, progress=lines.append, stop=stop)
    assert (len(runs), found.steps, found.events, found.position) == (3, 6, 15, "at")
    assert [line for line in lines if error.message in line] == [
        f"warning: {error.message}. The job waits, and asks again: nothing is applied meanwhile"
    ]
