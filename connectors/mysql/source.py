"""MySQL and MariaDB as a `Source`: the SQL connection answers, the dump connection streams."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Final, TypeVar

import orjson

from cdc.config.config import ConnectorConfig
from cdc.model.change import Change, Coordinates, Described, Idle, Message, Offset, Table, Transaction, TransactionBatch
from cdc.model.errors import BugError, CdcError, NewTablesError, ProtocolError, RetryableError, raise_first
from cdc.model.interfaces import Follower, Start
from cdc.model.state import State
from cdc.model.table_schema import Description
from connectors import captured_tables
from connectors.mysql import same_server, session
from connectors.mysql.binlog import events, fast_path, parser, transaction_payload
from connectors.mysql.binlog.last_transaction import LastTransaction
from connectors.mysql.binlog.offsets import FileOffsets
from connectors.mysql.binlog.positions import (
    EXACT,
    FIRST,
    LARGEST,
    BinlogPosition,
    GtidSet,
    position_at,
)
from connectors.mysql.catalog import filters, server
from connectors.mysql.catalog.catalog import Captured, Catalog
from connectors.mysql.read_position import ReadPosition
from connectors.mysql.replication import continuity, dumps, hold, last_transaction, mariadb_history
from connectors.mysql.replication.claim import Claim
from connectors.mysql.replication.dump_stream import BinlogDump, replica_uuid, unreadable
from connectors.mysql.replication.file_ends import FileEnds
from connectors.mysql.rows.relations import Followed
from connectors.mysql.rows.transactions import Committed, Grouper
from connectors.mysql.statements.judgement import judge
from connectors.mysql.statements.temporary_tables import THREAD_SPECIFIC, Session

log = logging.getLogger("cdc")

_T = TypeVar("_T")
_WAIT_S: Final = 0.5
_AT_ONCE: Final = 1000
"""How many rows of small transactions are read at once."""
_OF_FILES: Final = (events.Rotate, events.FormatDescription, events.PreviousGtids, events.Heartbeat)
_OF_NO_PLACE: Final = (events.FormatDescription, events.Heartbeat)
"""Events that may be in no file, or at its beginning though the log is read from its middle."""
_SMALL_UPTO: Final = EXACT - (1 << 28)
"""Behind this offset of a file, transactions are read one by one: those read at once never reach 4 GiB."""
_VISIBLE_S: Final = 30
"""How long a statement that is in the log may take to become visible."""
_COMPARED_S: Final = 30.0
"""How often the server's filters are compared with what is captured."""


class MysqlSource:
    """Follows one server's binlog."""

    name, database = "mysql", ""
    places: tuple[str, ...] = ("server_id", "gtid", "file", "pos", "row")

    def __init__(self, config: ConnectorConfig) -> None:
        self._config = config
        self._address = session.address(config.source.url)
        self._claim = Claim(self._address, uuid=replica_uuid(config))
        self._sql: session.Connection | None = None
        self._dump: BinlogDump | None = None
        self._server = server.Server("", {}, "")
        self._compared_s, self._by_gtid = time.monotonic(), False
        """Whether views tell transactions by GTID, not by where they end."""
        self._by_hand: GtidSet | None = None
        """What Kafka has, and what somebody has set gtid_purged to, if that is more."""
        self._unlogged, self._looked_s = False, float("-inf")
        self._captured: tuple[Captured, ...] = ()
        self._left_out = captured_tables.LeftOut(())
        self._followed = Followed(config.source, ())
        self._grouper = Grouper(self._followed.wanted)
        self._file = fast_path.File("", b"", 0)
        self._place = ReadPosition()
        self._offsets = FileOffsets()
        self._ends = FileEnds(self.made_at)

    def follower(self) -> Follower | None:
        return self._claim.follower()

    def free(self) -> None:
        self._claim.free()

    def clock_ms(self) -> int:
        return server.clock_ms(self._connected())

    def connect(self) -> Mapping[str, str]:
        self._claim.keep()
        sql = self._sql = same_server.first(self._address)
        self._server = server.look(sql)
        raise_first(server.refusals(self._server, self._address.endpoint, but_log=True))  # `verify` says so
        raise_first(dumps.duplicates(self._config, self._server))
        for refusal in server.unlogged(sql, self._server, self._address.endpoint) if self._server.has_log else ():
            if refusal is not None:
                raise refusal
            log.warning("MySQL at %s may be a replica: if so, %s", self._address.endpoint, server.NOT_HANDED_ON)
        session.tell_of_weak_tls(self._address.endpoint, session.weakness(self._address))
        of = self._config.source
        left_out = self._left_out = captured_tables.LeftOut(of.tables, of.outbox)
        self._captured = Catalog(sql).captured(of.tables, of.keys, left_out)
        left_out.refuse_all(self._captured)
        captured_tables.tell(one.warning for one in self._captured)
        self._compare_filters()
        for warning in filters.warnings(sql, self._server):
            log.warning("MySQL at %s: %s", self._address.endpoint, warning)
        self._followed = Followed(
            of,
            self._captured,
            folds=self._server.folds,
            mariadb=self._server.mariadb,
            restricted=lambda schema, name: self._catalog().restricted(schema, name),
            foreign_keys=None if self._server.logs_cascades else lambda name: self._catalog().foreign_keys(name),
            log_end=self.current,
            catalog=self._catalog,
        )
        return continuity.identity(self._server)

    def _compare_filters(self) -> None:
        """Raise OperatorError if the server leaves captured tables out of its log."""
        raise_first(filters.refusals(self._connected(), self._server, self.tables(), self._address.endpoint))
        self._compared_s = time.monotonic()

    def _compare(self) -> None:
        self._compare_filters()
        self._followed.new |= captured_tables.back(self._left_out.may_pass, self._catalog(), self._config.source.keys)
        read_to = self._place.read_to
        self._ends.look(read_to, continuity.end_of_log(self._connected(), self._server, read_to, self._place.gtids))

    def tables(self) -> tuple[Table, ...]:
        return tuple(captured.table for captured in self._captured)

    def left_out(self) -> Mapping[str, CdcError]:
        return self._left_out.found

    def unused(self) -> None:
        self.made_at(server.status(self._connected(), self._server)[0])  # whether the log is sent to this user at all

    def verify(self, state: State) -> tuple[Offset, int] | None:
        self._followed.kept.begin(state.carried)
        here = continuity.look_at_log(self._connected(), self._server)
        self._place.read_to = continuity.resumes_at(state)
        raise_first(continuity.refusals(state, here, self.made_at, self._find, partial(self._trace, here.files)))
        stops = self._config.source.on_hole == "stop"
        self._by_hand = continuity.by_hand(state, here, stops=stops)
        self._unlogged = continuity.was_off(state, stops=stops)
        if not continuity.moved(state, here, self.made_at):
            return None
        offset, commit = continuity.elsewhere(state, here)
        self._place.read_to = BinlogPosition(str(offset["file"]), int(offset["pos"]))
        return offset, commit

    def stale(self) -> Mapping[str, str]:
        reason = continuity.WAS_OFF if self._unlogged else continuity.BY_HAND
        return {t.qualified: reason for t in self.tables() if self._unlogged or self._by_hand is not None}

    def hold(self, tables: Sequence[Table]) -> Start:  # noqa: ARG002 - the log has every table anyway
        """Hold nothing: the server keeps its log as long as its settings say, no matter who follows."""
        self._by_hand, self._unlogged, sql = None, False, self._connected()
        offset, self._place.read_to = hold.begin(sql, self._server, self.made_at)
        if server.await_prepared(sql, self._claim.keep):
            offset |= {"settled": server.status(sql, self._server)[0].commit}
        return Start(offset, BinlogPosition(str(offset["file"]), int(offset["pos"])).commit, None)

    def extend(self, tables: Sequence[Table]) -> None:
        """Do nothing: the log has every table anyway."""

    def carried(self) -> Mapping[str, str]:
        return self._followed.kept.carried

    def recall(self, described: Mapping[tuple[str, str], Sequence[Description]]) -> None:
        self._followed.recall(described)

    def tend(self) -> None:
        """Keep what other copies see; no log is held, so look whether it is still there while it is not read."""
        self._claim.keep()
        if time.monotonic() - max(self._compared_s, self._looked_s) > _COMPARED_S:
            if self._dump is None:
                continuity.require_log(self._connected(), self._server, self._place.read_to)
            else:  # what is read holds the files that are still to come
                server.status(self._connected(), self._server)
            self._looked_s = time.monotonic()

    def current(self) -> int:
        return server.status(self._connected(), self._server)[0].commit

    def made_at(self, position: BinlogPosition) -> int:
        """Return when the file of a binlog position was begun: see `dumps.file_made_at`."""
        return dumps.file_made_at(lambda: dumps.glance(self._config, self._address, self._server), position)

    def _find(self, last: LastTransaction, known: GtidSet | None) -> LastTransaction | None:
        return last_transaction.find(lambda: dumps.glance(self._config, self._address, self._server), last, known)

    def _trace(self, files: Sequence[str], gtid: mariadb_history.Gtid) -> mariadb_history.History | None:
        return mariadb_history.trace(lambda: dumps.glance(self._config, self._address, self._server), files, gtid)

    def stream(self, offset: Offset) -> Iterator[Transaction | TransactionBatch | Message | Idle]:
        dump = self._dump = dumps.follow(self._config, self._address, self._server)
        place = self._place
        asked = place.resume(offset, gtids=self._server.gtids, mariadb=self._server.mariadb)
        place.gtids = self._by_hand or place.gtids
        self._by_gtid, self._followed.since = self._server.gtids, place.sift
        # What ends before `done` was published, even if it was prepared before the part that is read again.
        self._grouper = Grouper(self._followed.wanted, settled=max(place.settled, place.done))
        self._offsets, self._ends = FileOffsets(whole=place.by_file), FileEnds(self.made_at)
        if place.by_file:
            dump.follow(asked)
        elif isinstance(place.gtids, GtidSet):
            dump.follow_gtids(place.gtids)
        else:
            dump.follow_mariadb(str(place.gtids))
        yield from self._read(self._frames(dump, asked))

    def _read(self, read: Iterator[_T]) -> Iterator[_T]:
        """Give what is read of the log. Raises GapError where it cannot be read: nobody can start behind that."""
        try:
            yield from read
        except ProtocolError as exc:
            raise unreadable(self._place.read_to, exc) from exc

    def _frames(
        self, dump: BinlogDump, asked: BinlogPosition
    ) -> Iterator[Transaction | TransactionBatch | Message | Idle]:
        described: events.FormatDescription | None = None
        file = asked.file
        self._offsets.begin(file, asked.offset)
        yielded_s = time.monotonic()
        read_small: fast_path.ReadSmall | None = None
        place, reach, sifts = self._place, self._place.reach, self._place.sift > 0
        while True:
            self._claim.keep()
            if time.monotonic() - self._compared_s > _COMPARED_S and dump.answers():
                self._compare()
            small = self._small(dump, read_small, file) if read_small is not None else None
            if small is not None:
                if small.transactions:
                    yield TransactionBatch(small.transactions)
                    yielded_s = time.monotonic()
                elif time.monotonic() - yielded_s > _WAIT_S:
                    yield Idle()
                    yielded_s = time.monotonic()
                continue
            raw = dump.receive()
            if raw is None or time.monotonic() - yielded_s > _WAIT_S:  # also while only other tables change
                yield Idle()
                yielded_s = time.monotonic()
            if raw is None:
                dump.wait(_WAIT_S)
                continue
            event = self._placed(
                parser.parse(raw, described)
                if isinstance(raw, bytes)
                else transaction_payload.parse_long(raw, described)
            )
            if isinstance(event, _OF_FILES):
                file = self._turned(event, file, asked)
                if isinstance(event, events.FormatDescription):
                    described, read_small = event, self._reads_small(event)
                continue
            skipped = sifts and place.skips(event, file)
            done = None if skipped else self._grouper.feed(event, raw if isinstance(raw, bytes) else b"", file)
            if not isinstance(raw, bytes):
                raw.close()
            if done is None:
                if self._grouper.between and not event.header.artificial and not skipped:
                    reach(BinlogPosition(file, event.header.log_pos))
            elif isinstance(done, Committed) and done.block.ends_behind(place.done):
                hanging = self._followed.hanging
                yield self._transaction(done)
                if described is not None and self._followed.hanging != hanging:  # it holds which tables are known
                    read_small = self._reads_small(described)
                yielded_s = time.monotonic()
                if place.read_to.order < BinlogPosition(done.block.begin.file, done.block.end).order:
                    raise BugError("a transaction was left before its end")
            else:
                place.passed(done.block)

    def _reads_small(self, described: events.FormatDescription) -> fast_path.ReadSmall | None:
        if self._server.mariadb:
            return None
        return fast_path.small(parser.MAPS, self._known, checksum=described.checksum, by_gtid=self._by_gtid)

    def _placed(self, event: events.Event) -> events.Event:
        """Give an event where it ends in its file: a header tells the lower 32 bits."""
        header = event.header
        if header.artificial or isinstance(event, _OF_NO_PLACE) or (not header.log_pos and self._grouper.between):
            return event
        end = self._offsets.end_of(header) if header.log_pos else self._offsets.counted(header)
        return event if end == header.log_pos else event._replace(header=header._replace(log_pos=end))

    def _small(self, dump: BinlogDump, read: fast_path.ReadSmall, file: str) -> fast_path.SmallTransactions | None:
        """Read small transactions that have come whole, as `_transaction` has them; None: there are none.

        It takes offsets as headers have them, so it ends long before they begin again.
        """
        if not self._grouper.between or self._offsets.at > _SMALL_UPTO:
            return None
        if self._file.name != file:
            self._file = fast_path.File.named(file)

        def at_once(buffer: bytearray, at: int) -> tuple[int, fast_path.SmallTransactions] | None:
            found = read(buffer, at, self._file, self._place.done, _AT_ONCE)
            return None if found is None else (found[0], fast_path.SmallTransactions(*found[1:]))

        small = dump.read_buffered(at_once)
        if small is not None:
            if isinstance(self._place.gtids, GtidSet):
                if self._place.read_to.commit < self._place.sift:
                    known = self._place.gtids
                    small = small._replace(transactions=[one for one in small.transactions if one.id not in known])
                for numbers in small.numbers:
                    self._place.gtids.add_numbers(*numbers)
            self._offsets.read(small.begin, small.end)
            self._place.reach(BinlogPosition(file, small.end))
            begin, gtid, at_us = small.last
            self._place.ended_with(LastTransaction(at_us, gtid, BinlogPosition(file, begin)))
        return small

    def _known(self, told: events.TableMap, file: str, offset: int) -> tuple[Table, fast_path.Read | None] | None:
        if self._followed.takes_along(told):
            return self._captured[0].table, None  # read one by one
        found = self._followed.table(told, BinlogPosition(file, offset))
        return None if found is None else (found[0], found[1].whole())

    def _turned(
        self,
        event: events.Rotate | events.FormatDescription | events.PreviousGtids | events.Heartbeat,
        file: str,
        asked: BinlogPosition,
    ) -> str:
        """Take an event that says where in which file the log stands; return the file that it goes on in."""
        self._ends.turned(event, file)
        match event:
            case events.Rotate():
                file = event.file
                self._offsets.begin(file, max(event.position, FIRST))
                self._place.reach(BinlogPosition(file, max(event.position, FIRST)))
            case events.FormatDescription():
                self._grouper.reset(event)
                if event.created_at_s:
                    self._followed.restarted()
                prepared = {block.begin.file for block in self._grouper.prepared.values()}
                self._place.begun(file, event.header.timestamp_s, asked, prepared)
                self._place.reach(BinlogPosition(file, event.header.log_pos))
            case events.PreviousGtids():
                if self._place.gtids is None and self._server.gtids:  # it was followed from before gtid_mode was ON
                    self._place.gtids = GtidSet.parse(event.text)
                self._place.reach(BinlogPosition(file, event.header.log_pos))
            case events.Heartbeat():
                if self._grouper.between and event.file == file:
                    told = self._offsets.told(event.position) if event.position <= LARGEST else event.position
                    self._place.reach(BinlogPosition(file, told))
        return file

    def _transaction(self, done: Committed) -> Transaction:
        block = done.block
        gtid = b"null" if block.gtid is None else orjson.dumps(block.gtid)
        where = b'"server_id":%d,"gtid":%b,"file":%b' % (block.server_id, gtid, orjson.dumps(done.rows.begin.file))
        xid = block.gtid if self._by_gtid and block.gtid is not None else block.commit
        return Transaction(
            block.gtid or str(block.begin),
            xid,
            block.commit,
            block.at_ms,
            self._read(self._changes(done)),
            where.replace(b"%", b"%%") + b',"pos":%d,"row":%d',
        )

    def _changes(self, done: Committed) -> Iterator[Change | Described | Message]:
        rows = done.rows
        described = rows.described
        version = "" if described is None else described.server_version
        maps: dict[int, events.TableMap] = {}
        if rows.uncertain:
            yield from self._followed.unsure(rows.touched(), rows.begin)
        for event, offset in rows.buffer.read(lambda raw: parser.parse(raw, described)):
            at = BinlogPosition(rows.begin.file, offset)
            self._claim.keep()
            match event:
                case events.TableMap():
                    maps[event.table_id] = event
                case events.Rows() | events.PartialUpdateRows():
                    told = maps[event.table_id]
                    known = self._followed.table(told, at)
                    if known is not None and not rows.uncertain:
                        yield from self._followed.changes(event, known, at)
                    if self._followed.takes_along(told):
                        yield from self._followed.cascaded(event, told, at)
                case events.Query():
                    session_ = Session(event.thread_id, bool(event.header.flags & THREAD_SPECIFIC))
                    said = judge(event.statement, event.schema, version, event.sql_mode)
                    asked = partial(self._catalog_with, done.block.gtid)
                    yield from self._followed.of_statement(said, at, asked, session_)
        rows.buffer.close()
        self._place.passed(done.block)

    def position(self) -> tuple[Offset, int]:
        return self._place.offset(self._grouper.prepared.values())

    def acknowledge(self, offset: Offset) -> None:  # noqa: ARG002 - the server does not hold the log for us
        """Take up new tables, once all that the log had before them is in Kafka: by a session that begins with them."""
        if new := self._followed.new:
            raise NewTablesError(f"table {', '.join(sorted(new))} is new, or has another name: it is taken up", new)

    def coordinates(self, commit: int) -> tuple[bytes, Coordinates]:
        at = position_at(commit, self._place.read_to.file)
        file = orjson.dumps(at.file).replace(b"%", b"%%")
        return b'"server_id":0,"gtid":null,"file":' + file + b',"pos":%d,"row":%d', (at.offset, 0)

    def lag_bytes(self) -> int | None:
        sql = self._connected()
        return server.bytes_between(sql, self._place.read_to, server.status(sql, self._server)[0])

    def close(self) -> None:
        self._claim.close()
        if self._dump is not None:
            self._dump.close()
        same_server.close(self._address, self._sql)
        self._dump = self._sql = None

    def _connected(self) -> session.Connection:
        if self._sql is None:
            raise BugError("the source is not connected")
        return self._sql

    def _catalog(self) -> Catalog:
        return Catalog(self._connected())

    def _catalog_with(self, gtid: str | None) -> Catalog:
        """Return the catalog as it is with this transaction: MySQL sends the log before a commit is visible."""
        if self._by_gtid and gtid is not None:
            statement = f"SELECT WAIT_FOR_EXECUTED_GTID_SET(%s, {_VISIBLE_S})"
            ((late,),) = session.texts(self._connected(), "waiting for a statement to end", statement, (gtid,))
            if late != "0":
                raise RetryableError("a statement that is in the log does not end at the server", hint=session.GO_ON)
        return self._catalog()


def open_source(config: ConnectorConfig) -> MysqlSource:
    """Make the source, for the registry. Connects to nothing yet."""
    return MysqlSource(config)
