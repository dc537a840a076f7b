"""Writes the outbox to Kafka, exactly once: a step's events and the position behind them are one transaction.

    the step is committed in the state, with its events in the outbox and `seq`, the number of the last one
    -> a Kafka transaction: events above the position topic's number, then a State with `seq`
    -> the outbox is emptied

Killed before the first, the batch comes again, and the step with it. Between the two, the State in the position topic
has a lower number than the outbox: what is above it is sent, once, because fencing comes before that State is read.
After the second, it has the outbox's last number: nothing is sent. The number alone decides, never how often it is
tried.

Two states can come to one number: where a copy of the state goes on elsewhere, both take a step. So a step has a token,
which its State has, too. A state of which Kafka has another token is not the one that was published, whatever its
number: it is made again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import orjson

from cdc.capture.starting.descriptions import restored
from cdc.capture.starting.verdicts import of_topics
from cdc.encode.envelope.frame import PlainFrame
from cdc.encode.envelope.table_encoder import TableEncoder
from cdc.encode.schema_versions import SchemaVersions
from cdc.encode.topic_contents.foreign import event_of, names_a_row
from cdc.model.audit import Act
from cdc.model.change import Position
from cdc.model.errors import FencedError, OperatorError, RetryableError, raise_first
from cdc.model.interfaces import Sink
from cdc.model.ledger import loss, to_record
from cdc.model.state import Phase, State
from spark_apply.events.kafka.client import NoAnswerError
from spark_apply.job.watermarks.progress import ORIGIN
from spark_apply.model.completeness import BEHIND
from spark_apply.views.embedded.state import ViewState
from spark_apply.views.planning.definitions import Definition, Text
from spark_apply.views.planning.view import View

SOURCE = "view"
"""The ``connector`` in the source block of views' events."""

_ANOTHER_NAME = "give the view another name: it is published as a whole under it, and its readers go over"
_CREATED = b'{"before":null,"after":'
_FOREIGN = "null"
MOST_CHARACTERS = 7_500_000
"""So much of two rows is in an event, which topics take to 32 MiB; of more, the old row is left out."""
_PATIENCE_S = 120.0
_NUMBERS = 1 << 32

Progress = Callable[[str], None]


@dataclass(slots=True)
class ViewOutput:
    """The sink of a view job. Not thread-safe."""

    sink: Sink
    job: str
    prefix: str
    state: ViewState
    views: Sequence[View]
    tell: Progress
    origin: str
    """The connector that the positions are of."""
    texts: Mapping[str, Text] = field(default_factory=dict)
    """By view, the definition that it is computed by."""
    answers: tuple[Act, ...] = ()
    """The commands that the next transaction answers."""
    lost: set[str] = field(default_factory=set)
    """Views whose topics do not hold any more what was written to them."""
    _last: State | None = None
    _is_ahead: bool = False
    """Whether it was told that what is published is ahead of the source's topics."""
    _clear: bool = True
    """Whether the outcome of the last transaction is known; otherwise fencing comes first."""
    _fenced: FencedError | None = None
    """Another copy goes on: this one must never fence again."""
    _versions: SchemaVersions | None = None
    _encoders: dict[str, TableEncoder] = field(default_factory=dict)
    _defined: dict[str, str] = field(default_factory=dict)
    """By view, its definition as it was recorded last."""

    def require_own(self, stand: State | None) -> None:
        """Raise FencedError if another copy has published since this state did: it is not fenced off by this one.

        `stand` is what is in Kafka. For a process that opens its state once more; one that was started takes over.
        """
        self._last = stand
        if self.sent_step >= int(self.state.get("step") or 0) and not self.knows_state:
            raise self._published_since()

    def begin(self) -> State | None:
        """Make the topics that are missing, fence off any other copy, and return where it stood.

        Raises OperatorError if the topics hold what the position does not account for.
        """
        tables = [view.table for view in self.views]
        try:
            there = self.sink.check(tables)
            if there and (stand := self.sink.peek()) is not None:
                self._refuse_another_origin(stand)  # the job that is right must not be fenced off for this one
            self.sink.create(tables)
            self._fence()
            raise_first(of_topics(self.sink.recorded(), self.sink.found()))
        except OperatorError as exc:
            if "sink.topic_prefix" not in (exc.hint or ""):
                raise
            raise OperatorError(exc.message, hint=_ANOTHER_NAME) from exc  # a view job has its connector's prefix
        if self._last is not None:
            self._compare(self._last)
        else:
            occupied = self.sink.occupied(tables)
            if occupied:
                msg = f"topic {occupied[0]} holds records, and no position of the view job {self.job} knows of them"
                raise OperatorError(msg, hint="another job's view? Give this job another name, or the view another one")
        return self._last

    def _compare(self, state: State) -> None:
        """Find the views whose topics are not what was written; refuse positions of another connector."""
        self._refuse_another_origin(state)
        for view in self.views:
            topic = self.sink.topic(view.table)
            what = loss(self.sink.recorded().get(topic), self.sink.found()[topic], keeps=True)
            if what is not None and view.relation in state.tables:
                self.lost.add(view.name)
                self.tell(f"warning: topic {topic} {what.value}: what it lost is published again")

    def _refuse_another_origin(self, state: State) -> None:
        was = state.identity.get(ORIGIN, self.origin)
        if was != self.origin:
            now = self.origin
            msg = f"view job {self.job} has published positions of connector {was}, and its tables are of {now} now"
            hint = "positions of two connectors cannot be compared: give the view job another name, and its views too"
            raise OperatorError(msg, hint=hint)

    def _fence(self) -> None:
        self._last = self.sink.fence()
        self._clear, self._versions = True, None
        self._encoders.clear()

    def _describe(self, at: Position) -> None:
        """Add to the open transaction what readers must know of the views, and what is relied on of their topics."""
        topics = {view.name: self.sink.topic(view.table) for view in self.views}
        if self._versions is None:
            published = list(self.sink.schemas())
            self._versions = SchemaVersions(
                [*published, *restored(self.sink, published, frozenset(topics.values()))],
                connector=self.job, source=SOURCE, prefix=self.prefix, database="",
            )  # fmt: skip
        for topic, facts in to_record(self.sink.recorded(), self.sink.found()).items():
            self.sink.rely(topic, facts)
        for view in self.views:  # one without rows is described, too: who reads it must know its columns
            if view.name not in self._encoders:
                self._encoders[view.name] = self._versions.add(
                    view.table, topics[view.name], at, self.sink.schema, lambda _table, _reason: None
                )

    @property
    def sent(self) -> int:
        """The number of the last event that is in Kafka."""
        return int(self._last.offset["seq"]) if self._last is not None else 0

    @property
    def sent_step(self) -> int:
        """The number of the last step that is in Kafka."""
        return int(self._last.offset["step"]) if self._last is not None else 0

    @property
    def position(self) -> str:
        """The position up to which views are published."""
        return str(self._last.offset["position"]) if self._last is not None else ""

    def is_ahead_of(self, limit: str) -> bool:
        """Tell whether what is published is of a later position than `limit`, from which nothing may be published then.

        The source's topics have lost their end: readers take what has an older position for old, and leave it out.
        """
        was, self._is_ahead = self._is_ahead, limit < self.position
        if self._is_ahead and not was:
            self.tell(
                f"warning: the topics of {self.origin} hold everything up to {limit} alone, and views are published up "
                f"to {self.position}: they wait until the topics are there again"
            )
        return self._is_ahead

    @property
    def _sent_token(self) -> str | None:
        """What tells the last step that is in Kafka from another one of its number; None: an older release wrote it."""
        return str(self._last.offset.get("token", "")) or None if self._last is not None else None

    @property
    def knows_state(self) -> bool:
        """Whether what is in Kafka is what the state has published, or all but its last step."""
        step, waiting = int(self.state.get("step") or 0), self.state.get("outbox")
        if self.sent_step == step:
            return self._sent_token in (None, self.state.get("token"))
        behind = waiting is not None and self.sent_step == step - 1
        return behind and self._sent_token in (None, orjson.loads(waiting or "{}").get("after"))

    def begin_again(self) -> None:
        """Have the state made again, from where Kafka stands."""
        clock_ms = self._last.source_ms or None if self._last is not None else None
        self.state.begin_again(seq=self.sent, step=self.sent_step, token=self._sent_token or "", clock_ms=clock_ms)

    def published(self, view: View) -> Iterator[tuple[str, str | None]]:
        """Yield key and row, as JSON, of every event in a view's topic, in order for each key; None: it was deleted.

        A record that no job has written, under a key as the view has, gives the row ``null``, which no view has: so
        what belongs there is published again, or the key deleted. Others are left where they are.
        """
        names, foreign = [name for name, _ in view.key], 0
        for key, value in self.sink.records(view.table, committed=True):
            row = row_of(value) if value is not None else None
            is_ours = row is not None or value is None or event_of(value) is not None
            foreign += not is_ours
            if (key or b"")[:1] == b"{" and names_a_row(key, names):
                yield key.decode(), row if is_ours else _FOREIGN
        if foreign:
            self.tell(f"warning: topic {self.sink.topic(view.table)}: {foreign:,} records are no events of this job")

    def load(self, view: View) -> None:
        """Read what a view's topic holds into the state, to publish only what differs from it."""
        self.state.keep_published(view.name, self.published(view))

    def flush(self) -> None:
        """Send what the outbox has and Kafka does not; empty it. Tries again for two minutes where that may help.

        Raises FencedError if another copy has taken over.
        """
        if self.sink.moved():
            raise self._moved()
        if self.state.get("outbox") is None:
            return
        until = time.monotonic() + _PATIENCE_S
        wait_s = 0.5
        while True:
            if self._fenced is not None:
                raise self._fenced
            try:
                if not self._clear:
                    self._fence()
                    if any(facts.cut for facts in self.sink.found().values()):
                        raise self._moved()
                    if not self.knows_state:
                        raise self._published_since()
                self._clear = False
                self._flush()
                self._clear = True
            except FencedError as exc:
                self._fenced = exc
            except RetryableError as exc:
                if time.monotonic() > until:
                    raise NoAnswerError(exc.message, hint=exc.hint or "start again: it goes on where it was") from exc
                self.tell(f"warning: the views' topics cannot be written, trying again: {exc.message}")
                time.sleep(wait_s)
                wait_s = min(2 * wait_s, 10.0)
            else:
                break
        with self.state.transaction():
            self.state.execute("DELETE FROM outbox")
            self.state.put(outbox=None)

    def _published_since(self) -> FencedError:
        return FencedError(
            f"another copy of view job {self.job} has published in the meantime",
            hint="let one of them run: this one makes its state again at its next start",
        )

    def _moved(self) -> OperatorError:
        return OperatorError(
            f"a topic of view job {self.job} was deleted, made again, given partitions or cut while the job runs",
            hint="start it again: what it has lost is published again",
        )

    def _flush(self) -> None:
        about = orjson.loads(self.state.get("outbox") or "null")
        last = self._last
        if self.sent_step == about["step"]:
            return
        at = Position.parse(about["position"])
        before_first = replace(last_position(at, 0), number=0)
        frame = PlainFrame(
            epoch=at.epoch,
            commit=before_first.commit,
            at_ms=about["clock_ms"] or 0,
            made_at_ms=time.time_ns() // 1_000_000,
            transaction=(f"{about['position']}:{about['step']}", 0),
            where=b'"step":%d' % about["step"],
        )
        self._describe(before_first)
        for rows in self.state.batches(
            f"SELECT seq, view, op, key, before, after FROM outbox WHERE seq > {self.sent} ORDER BY seq"
        ):
            for seq, name, op, key, before, after in rows:
                encoder = self._encoders.get(name)
                if encoder is None:
                    continue  # the file has this view no more
                frame.events = last_position(at, seq).number - 1
                if before and after and len(before) + len(after) > MOST_CHARACTERS:
                    before = None  # noqa: PLW2901 - a row that was published could never change
                value = frame.event(encoder, op.encode(), _json(before), _json(after), ())  # type: ignore[arg-type]
                self.sink.write(encoder.topic, key.encode(), value)
                if after is None:
                    self.sink.write(encoder.topic, key.encode(), None)
        offset = {name: about[name] for name in ("seq", "step", "position", "streams", "token") if name in about}
        computed = {name for (name,) in self.state.rows("SELECT name FROM views")}
        if behind := sorted(view.relation for view in self.views if view.name not in computed):
            offset[BEHIND] = behind  # readers must not take what they were for what they are at this position
        state = State(
            connector=self.job,
            identity={"kind": SOURCE, ORIGIN: self.origin},
            phase=Phase.STREAM,
            epoch=at.epoch,
            offset=offset,
            commit=at.commit,
            source_ms=about["clock_ms"] or 0,
            tables=tuple(sorted(view.relation for view in self.views)),
            sequence=last.sequence + 1 if last is not None else 0,
            carried=self._definitions(last),
        )
        for act in self.answers:
            self.sink.answered((act.id or "").encode())
            self.sink.log("audit", self.job.encode(), act.to_bytes(connector=self.job, position=at.text))
        self.sink.commit(state)
        self._last, self.answers = state, ()

    def _definitions(self, last: State | None) -> Mapping[str, str]:
        """Return by relation what is published by which definition; a view that never was has none yet."""
        found = dict(last.carried) if last is not None else {}
        computed = dict(self.state.rows("SELECT name, fingerprint FROM views"))
        for view in self.views:
            text, was = self.texts.get(view.name), found.get(view.relation)
            known = was is not None and self._defined.get(view.name) == was
            if text is None or known or computed.get(view.name) != view.fingerprint:
                continue
            now = Definition.from_json(was).next(text) if was is not None else Definition(1, text)
            found[view.relation] = self._defined[view.name] = now.to_json()
        return found if last is None or found != last.carried else last.carried


def last_position(at: Position, seq: int) -> Position:
    """Return the position of the event with this number, published up to the source position `at`.

    It sorts before `at`, as all that is complete at `at` does, and behind every event of lower number, since neither
    `at` nor `seq` goes back. After four thousand million events of one idle position the numbers begin again.
    """
    return Position(at.epoch, max(at.commit - 1, 0), (seq - 1) % (_NUMBERS - 1) + 1)


def row_of(event: bytes) -> str | None:
    """Cut the row out of an event of ours, with the bytes that it has: to read and write it again could change digits.

    Rows hold no objects, and no unescaped quotes in strings: what is looked for cannot be part of a row. None: it is a
    delete, or no event.
    """
    begin = event.find(b'},"after":') + 10 if event.startswith(b'{"before":{') else len(_CREATED)
    end = event.find(b',"source":{"version":', begin)
    if end < 0 or not (begin > len(_CREATED) or event.startswith(_CREATED)):
        return None
    row = event[begin:end]
    return row.decode() if row[:1] == b"{" else None


def _json(value: str | None) -> bytes:
    return b"null" if value is None else value.encode()


def outbox_note(
    *,
    step: int,
    seq: int,
    position: str,
    clock_ms: int | None,
    streams: Mapping[str, Mapping[int, int]],
    tokens: tuple[str, str | None],
) -> Mapping[str, object]:
    """Return what belongs to the events of an outbox; `streams` has the offsets behind what was read of them.

    `tokens` are the step's own and that of the step before it.
    """
    offsets = {name: {str(partition): offset for partition, offset in of.items()} for name, of in streams.items()}
    about = {"step": step, "seq": seq, "position": position, "clock_ms": clock_ms, "streams": offsets}
    return {**about, "token": tokens[0], "after": tokens[1]}
