"""A member's loop: what it hears of the group, the topic and its children goes to the roster, which says what to do.

One thread does all that has an order; the group is polled and states are written on threads of their own, so that a
Kafka that does not answer holds up neither a child's end nor the next one's start.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from cdc.fleet.children import Children
from cdc.fleet.entry import CONNECTOR, STATUS, Entries, read_entries
from cdc.fleet.meter import FleetMeter, NoFleetMeter
from cdc.fleet.report import Report
from cdc.fleet.roster import Job, Jobs, Kill, Reason, Roster, Start, Stop
from cdc.fleet.seams import Assigned, Away, Fleet, Lost, Membership, Records, Revoked, clock_s
from cdc.fleet.standing import Status
from cdc.machine.flag import Flag
from cdc.model.errors import CdcError, OperatorError, RetryableError
from cdc.model.meter import RunState

_TICK_S: Final = 0.1
_LOOK_S: Final = 2.0
_SAID_S: Final = 60.0
_TWIN_S: Final = 10.0
"""A former process of the same name is in the group until its session ends."""
_WRITE_AGAIN_S: Final = 2.0
_LOOK_INTO_LOG: Final = "the member's log has its last words; without any, the machine's: was memory short?"
_ROOM: Final = (
    "has the temporary folder (TMPDIR) room, and may the member open as many files (ulimit -n) and have as many "
    "processes (ulimit -u, TasksMax, the container's limit)?"
)

log = logging.getLogger("cdc")


class Member:
    """Runs connectors until it is stopped."""

    def __init__(self, fleet: Fleet, name: str, children: Children, meter: FleetMeter | None = None) -> None:
        self._fleet, self._name, self._children = fleet, name, children
        self._meter = meter or NoFleetMeter()
        self._roster = Roster()
        self._entries = Entries({}, {})
        self._said: dict[str, Status] = {}
        self._shown: set[str] = set()
        """The connectors of which the topic had a state when it was read last."""
        self._revoked: list[Revoked] = []
        self._stop, self._hung_up = Flag(), Flag()
        self._told_s: dict[str, float] = {}
        self._overwritten = set[str]()
        """Connectors of which the topic has another state, or none any more: said again once they are this one's."""
        self._alone = False
        """Whether it is known, or being asked, that no other member has this one's name."""
        self._twin: OperatorError | None = None

    def stop(self) -> None:
        """Ask to stop all children and leave the group; callable from a signal handler."""
        self._stop.set()

    def hang_up(self) -> None:
        """Have all children read their references again; callable from a signal handler."""
        self._hung_up.set()

    def run(self) -> None:
        """Return after a stop. Raises OperatorError where nobody lets it in, or its name is another member's."""
        records = self._wait_for(self._begin)
        if records is None:
            return
        self._children.await_ready()
        writer = StatusWriter(self._fleet, self._writes)
        membership = self._fleet.join(self._name)
        log.info(
            "member %s: joins, %d connectors in topic %s", self._name, len(self._entries.good), self._fleet.topic()
        )
        try:
            while not self._stop.is_set():
                self._turn(membership, records, writer)
                if self._twin is not None:
                    raise self._twin
            self._leave(membership, writer)
        finally:
            membership.close()
            writer.close()
            records.close()

    def _begin(self) -> Records:
        """Read the topic, and see that nobody has this name. Raises RetryableError while either is to be waited for."""
        if self._fleet.read() is None:
            raise RetryableError(
                f"there is no topic {self._fleet.topic()}; fleets there: {', '.join(self._fleet.fleets()) or 'none'}",
                hint="cdc fleet add CONNECTOR.yaml makes it",
            )
        until_s = time.monotonic() + _TWIN_S
        while twin := [member for member in self._fleet.members() if member.name == self._name]:
            if time.monotonic() > until_s:
                raise _taken(self._name, twin[0].host)
            if self._stop.wait(0.5):
                break
        records = self._fleet.follow()
        self._read(records)
        return records

    def _wait_for(self, begin: Callable[[], Records]) -> Records | None:
        while not self._stop.is_set():
            self._meter.moves()
            try:
                return begin()
            except RetryableError as exc:
                self._tell(logging.WARNING, "waits", f"{exc.message}; {exc.hint}")
                self._stop.wait(_LOOK_S)
        return None

    def _turn(self, membership: Membership, records: Records, writer: StatusWriter) -> None:
        self._meter.moves()
        news = membership.news(_TICK_S)
        while news is not None:
            self._meter.hears(news)
            match news:
                case Assigned(places, heard_s):
                    self._roster.assigned(places, heard_s)
                    if places:
                        log.info("member %s: is given %d places more", self._name, len(places))
                    self._look_for_twin(membership.identity())
                case Revoked(places, _):
                    self._roster.revoked(places)
                    self._revoked.append(news)
                    log.info("member %s: gives %d places back", self._name, len(places))
                case Lost():
                    self._roster.lost()
                    log.warning("member %s: is out of the group; what runs goes on until another member fences it",
                                self._name)  # fmt: skip
                case Away(why):
                    self._tell(logging.WARNING, "away", f"{why.message}: everything goes on as it is")
            news = membership.news(0)
        try:
            self._read(records)
        except CdcError as exc:
            self._tell(logging.WARNING, "records", f"{exc.message}: entries stay as they were")
        self._hear(writer)
        if self._hung_up.is_set():
            self._hung_up.clear()
            log.info("member %s: SIGHUP: %d connectors read their references again, those that wait are started; "
                     "entries are followed in any case", self._name, len(self._roster.running))  # fmt: skip
            self._roster.tries_again()
            for name in self._roster.running:
                self._children.hang_up(name)
        self._act(writer)
        self._meter.has(self._roster.owned())
        for revoked in list(self._revoked):
            if not self._roster.busy(revoked.places):
                revoked.free.set()
                self._revoked.remove(revoked)

    def _read(self, records: Records) -> None:
        found = records.changed()
        if found is None:
            return
        before = self._entries
        self._entries = read_entries(
            {key.removeprefix(CONNECTOR): value for key, value in found.items() if key.startswith(CONNECTOR)}
        )
        self._roster.entries(Jobs(Job(one.name, one.place, one.digest) for one in self._entries.good.values()))
        for name, refused in self._entries.refused.items():
            if before.refused.get(name) != refused:
                log.error("member %s: connector %s is run by nobody: %s", self._name, name, refused.message)
        for name, status in self._said.items():
            newest = found.get(f"{STATUS}{name}")
            # a member that was cut off may have written late; a topic that was made again has none of what was said
            if name in self._shown if newest is None else newest != status.to_bytes():
                self._overwritten.add(name)
            elif newest is not None:
                self._overwritten.discard(name)
        said = {key.removeprefix(STATUS): value for key, value in found.items() if key.startswith(STATUS)}
        self._shown = set(said)
        read = ((name, Status.from_bytes(value)) for name, value in said.items())
        self._meter.sees(self._entries, {name: status for name, status in read if status is not None})

    def _hear(self, writer: StatusWriter) -> None:
        for name, report in self._children.reports():
            self._say(writer, name, _after(self._said[name], report))
        for name, code in self._children.ended():
            self._ended(writer, name, code)

    def _ended(self, writer: StatusWriter, name: str, code: int) -> None:
        pause = self._roster.ended(name, code, clock_s())
        if pause is None:
            log.info("member %s: connector %s has ended", self._name, name)
            return
        self._meter.ends(pause.reason.value)
        wait_s = max(0.0, pause.until_s - clock_s())
        stopped = pause.reason is Reason.STOPPED
        why = "was fenced off by another copy" if pause.reason is Reason.FENCED else f"ended with exit code {code}"
        then = (
            f"once it is decided what to do: cdc fleet restart {name}"
            if stopped
            else f"it is started again in {wait_s:.0f} s"
        )
        log.warning("member %s: connector %s %s; %s", self._name, name, why, then)
        status = self._said[name]
        if status.error is None:  # it was killed, or could not say why
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            error = {"kind": "Ended", "message": f"its process {how} and gave no reason", "hint": _LOOK_INTO_LOG}
            status = _after(status, Report(None, error))
        again_ms = None if stopped else _now_ms() + round(wait_s * 1000)
        self._say(writer, name, replace(_in_state(status, pause.reason.value), again_ms=again_ms))

    def _act(self, writer: StatusWriter) -> None:
        for action in self._roster.decide(clock_s()):
            match action:
                case Start(name, take_over):
                    before = self._said.get(name)
                    status = Status(member=self._name, state=RunState.STARTING.value, since_ms=_now_ms())
                    if before is not None and name in self._roster.pauses:
                        status = replace(status, error=before.error)
                    self._say(writer, name, status)
                    try:
                        self._children.start(self._entries.good[name], take_over=take_over)
                    except OSError as exc:
                        error = {"kind": "OSError", "message": f"it cannot be started: {exc.strerror}", "hint": _ROOM}
                        self._say(writer, name, _after(status, Report(None, error)))
                        self._ended(writer, name, OperatorError.exit_code)
                        continue
                    self._meter.starts(take_over=take_over)
                    log.info("member %s: connector %s is started%s", self._name, name, " and takes over" * take_over)
                case Stop(name):
                    log.info("member %s: connector %s is stopped", self._name, name)
                    self._children.stop(name)
                case Kill(name):
                    log.warning("member %s: connector %s did not stop in time, and is killed", self._name, name)
                    self._children.kill(name)
        for name in list(filter(self._roster.mine, self._overwritten)):
            self._overwritten.discard(name)
            writer.put(name, self._said[name])

    def _say(self, writer: StatusWriter, name: str, status: Status) -> None:
        if self._said.get(name) != status:
            self._said[name] = status
            writer.put(name, status)

    def _writes(self, name: str) -> bool:
        """Whether this member may still speak for a connector; asked by the writer's thread."""
        return self._roster.mine(name)

    def _look_for_twin(self, identity: str) -> None:
        """Of two members that joined at once under one name, the one that the coordinator names later ends."""
        if self._alone or not identity:
            return
        self._alone = True

        def look() -> None:
            try:
                members = self._fleet.members()
            except CdcError as exc:
                log.debug("member %s: whether it is the only one of its name is not known: %s", self._name, exc.message)
                self._alone = False  # the next news is as good
                return
            for member in members:
                if member.name == self._name and member.identity < identity:
                    self._twin = _taken(self._name, member.host)

        threading.Thread(
            target=look, name="cdc-fleet-twin", daemon=True
        ).start()  # what it asks may be long in answering

    def _leave(self, membership: Membership, writer: StatusWriter) -> None:
        """Stop all children, which the group need not wait for, and then leave it."""
        log.info("member %s: stops %d connectors and leaves", self._name, len(self._roster.running))
        self._roster.leave()
        while self._roster.running:
            self._hear(writer)
            self._act(writer)
            time.sleep(_TICK_S / 2)
        while (news := membership.news(0)) is not None:
            if isinstance(news, Revoked):
                self._revoked.append(news)
        for revoked in self._revoked:
            revoked.free.set()

    def _tell(self, level: int, what: str, text: str) -> None:
        now = time.monotonic()
        if now - self._told_s.get(what, float("-inf")) >= _SAID_S:
            self._told_s[what] = now
            log.log(level, "member %s: %s", self._name, text)


class StatusWriter:
    """Writes the newest state of each connector; tries again what Kafka does not take."""

    def __init__(self, fleet: Fleet, allowed: Callable[[str], bool]) -> None:
        self._fleet, self._allowed = fleet, allowed
        self._waiting: dict[str, Status] = {}
        self._news = threading.Condition()
        self._over = False
        self._thread = threading.Thread(target=self._run, name="cdc-fleet-status", daemon=True)
        self._thread.start()

    def put(self, name: str, status: Status) -> None:
        with self._news:
            self._waiting[name] = status
            self._news.notify()

    def close(self) -> None:
        """Give up what is not written: who has the place next writes its own."""
        with self._news:
            self._over = True
            self._news.notify()

    def _run(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._over)
                if self._over:
                    return
                name, status = self._waiting.popitem()
            if not self._allowed(name):
                continue
            try:
                self._fleet.write(f"{STATUS}{name}", status.to_bytes())
            except CdcError as exc:
                log.debug("the state of connector %s is not written: %s", name, exc.message)
                with self._news:
                    self._waiting.setdefault(name, status)
                    self._news.wait_for(lambda: self._over, _WRITE_AGAIN_S)


def _after(status: Status, report: Report) -> Status:
    """Take up what a child has reported."""
    if report.error is not None:
        error: Mapping[str, object] = {"at_ms": _now_ms(), **report.error}
        return replace(status, error=error)
    if report.state is None or report.state == status.state:
        return status
    well = report.state in (RunState.STREAMING, RunState.SNAPSHOT)
    return replace(_in_state(status, report.state), error=None if well else status.error, again_ms=None)


def _in_state(status: Status, state: str) -> Status:
    return status if status.state == state else replace(status, state=state, since_ms=_now_ms())


def _taken(name: str, host: str) -> OperatorError:
    return OperatorError(
        f"another member of the fleet is called {name}, at {host}",
        hint="give each member a name of its own: cdc fleet run --member NAME, or none for one that is made up",
    )


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
