"""Up to where the binlog was read, and where a session that follows begins: before what is prepared and not decided."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from cdc.model.change import Offset
from cdc.model.errors import GapError
from connectors.mysql.binlog import events
from connectors.mysql.binlog.last_transaction import KEY, LastTransaction
from connectors.mysql.binlog.positions import FIRST, SEEN, BinlogPosition, GtidPosition, GtidSet, GtidState, position_at
from connectors.mysql.replication.dump_stream import askable
from connectors.mysql.rows.transactions import Block


class ReadPosition:
    """Moves as blocks are read whole, or passed over."""

    def __init__(self) -> None:
        self.read_to = BinlogPosition("binlog.000000", FIRST)
        """Is behind the last block that was read whole, or passed over."""
        self.gtids: GtidSet | GtidPosition | None = None
        self.seen: GtidState | None = None
        """All that Kafka has of a MariaDB's domains and servers; None: it was not noted from the beginning."""
        self.settled = 0
        """Before this commit position, all has ended that was prepared before the log was followed."""
        self.done = 0
        """Blocks that end before this commit position were published by an earlier session."""
        self.by_file = False
        """Whether the log is asked for by file and offset."""
        self.sift = 0
        """Before this commit position, transactions of the set are passed over: a file is read from its beginning."""
        self._skip_to = (0, 0)
        """Up to where the transaction at hand is passed over: the number of its file, and an offset."""
        self._begun_at: dict[str, int] = {}
        """When the files that a position may name were begun."""
        self._last: LastTransaction | None = None
        """What was read last whole; None: nobody knows."""
        self._again: BinlogPosition | None = None
        """Where the oldest begins that an earlier session saw prepared; until the log was read up to `done` again."""

    def resume(self, offset: Offset, *, gtids: bool, mariadb: bool) -> BinlogPosition:
        """Take up what an earlier session has left; return the position that the log is asked for from."""
        position, known = BinlogPosition(str(offset["file"]), int(offset["pos"])), offset.get("gtids")
        self.settled, self.done = int(offset.get("settled", 0)), int(offset.get("done", 0))
        asked = askable(position)
        if asked != position:
            self.done = max(self.done, position.commit)
        self.read_to, made_at = position, int(offset.get("made_at", 0))
        self._begun_at = {position.file: made_at}
        self._last = LastTransaction.of(offset)
        self._again = asked if self.done else None
        if self.done and self.done != position.commit:
            self.read_to = position_at(self.done, position.file)
        self.gtids = None
        if known is not None:
            self.gtids = (GtidPosition if mariadb else GtidSet).parse(str(known))
        self.seen = GtidState.parse(str(offset[SEEN])) if SEEN in offset and mariadb else None
        self.sift = int(offset.get("sift", 0))
        # Of another server, or of one whose files are renumbered, nobody knows when they were begun: see `verify`.
        self.by_file = bool(made_at) or self.gtids is None or not (gtids or mariadb)
        return asked

    def skips(self, event: events.Event, file: str) -> bool:
        """Tell whether an event is of a transaction that was in the set already when the log was first followed.

        Whatever is in it was before the connector's time, and is not judged.
        """
        end = BinlogPosition(file, event.header.log_pos).order
        if isinstance(event, events.Gtid) and self.read_to.commit < self.sift and event.transaction_length:
            known = isinstance(self.gtids, GtidSet) and event.gtid in self.gtids
            self._skip_to = (end[0], end[1] - event.header.size + event.transaction_length) if known else (0, 0)
        if end == self._skip_to:
            self.reach(BinlogPosition(file, event.header.log_pos))
        return end <= self._skip_to

    def begun(self, file: str, made_at: int, asked: BinlogPosition, prepared: Collection[str]) -> None:
        """Check, when a file's head has come, that the one that was asked for is still the same.

        `prepared` are the files in which transactions begin that are not committed yet.
        """
        if file == asked.file and self.by_file and self._begun_at.get(file, 0) not in (0, made_at):
            raise GapError(
                f"binlog reset: {file} is not the file that the position is in: it was begun at another time",
                hint="cdc snapshot start CONNECTOR.yaml --after-gap",
            )
        named = {file, self.read_to.file, *prepared}
        if self._again is not None:
            named.add(self._again.file)
        self._begun_at = {name: at for name, at in self._begun_at.items() if name in named} | {file: made_at}

    def reach(self, position: BinlogPosition) -> None:
        """Note that between two blocks the log was read up to here."""
        commit = position.commit
        if commit >= self.done:
            self._again = None
        if position.order > self.read_to.order:
            self.read_to = position

    def ended_with(self, last: LastTransaction) -> None:
        """Note which transaction was read last."""
        self._last = last

    def passed(self, block: Block) -> None:
        """Note that a block was read to its end, or passed over."""
        if block.committed_us and BinlogPosition(block.begin.file, block.end).order > self.read_to.order:
            self.ended_with(LastTransaction(block.committed_us, block.gtid, block.begin))
        self.reach(BinlogPosition(block.begin.file, block.end))
        new = isinstance(self.gtids, GtidSet) or block.ends_behind(self.done)
        if new and block.gtid is not None and self.gtids is not None:
            self.gtids.add(block.gtid)
            if self.seen is not None:
                self.seen.add(block.gtid)

    def offset(self, prepared: Iterable[Block]) -> tuple[Offset, int]:
        """Return where to begin again, before all blocks that are `prepared`, and up to where all is read."""
        position = begin = self.read_to
        open_ = list(prepared)
        if open_:
            begin = min((block.begin for block in open_), key=lambda begin: begin.order)
        begin = self._again or begin  # before everything that has been prepared since
        offset: Offset = {"file": begin.file, "pos": begin.offset, "made_at": self._begun_at.get(begin.file, 0)}
        if begin != position:
            offset["done"] = position.commit
        if self.settled > position.commit:
            offset["settled"] = self.settled
        if self.sift > position.commit:
            offset["sift"] = self.sift
        if self.gtids is not None:
            left = self.gtids
            if isinstance(left, GtidSet) and open_:
                left = left.without(block.gtid for block in open_ if block.gtid is not None)
            offset["gtids"] = str(left)
        if self.seen is not None:
            offset[SEEN] = str(self.seen)
        if self._last is not None:
            offset[KEY] = str(self._last)
        return offset, position.commit
