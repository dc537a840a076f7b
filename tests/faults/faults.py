"""The faults, by kind: what is broken, for how long, and how the connector is brought back where it died."""

from __future__ import annotations

import random
import signal
import time
from functools import partial
from typing import Final

from tests.faults import proxy
from tests.faults.origin import Deck
from tests.faults.proxy import Proxy, Trap
from tests.faults.stage import Stage

_REACHED_S: Final = 15.0
_SPRUNG_S: Final = 10.0


def sigkill(stage: Stage) -> str:
    stage.restart(stage.kill())
    return ""


def sigstop(stage: Stage) -> str:
    stage.connector.copy.signal(signal.SIGSTOP)
    stage.sleep(0.5, 4)
    stage.connector.copy.signal(signal.SIGCONT)
    return ""


def crash(point: str, most: int, stage: Stage) -> str:
    """A copy that kills itself at a point of the commit cycle."""
    stage.kill()
    times = stage.random.randint(1, most)
    copy = stage.connector.crashing(point, times)
    reached = stage.until(lambda: not copy.alive, within_s=_REACHED_S)
    died_at_s = time.time()
    if reached and copy.process.returncode == -signal.SIGKILL:
        stage.restart(died_at_s)
        return f"{times}"
    if reached:  # of something else
        stage.settled(died_at_s)
        return "ended before"
    return "not reached"


def second_copy(stage: Stage) -> str:
    """Told to take over from a running one, it fences it."""
    first = stage.connector.copy
    return stage.one_of_two(first, stage.connector.start("--take-over"))


def zombie(stage: Stage) -> str:
    """Stopped, superseded, and woken up: what it had open must not become visible."""
    return _superseded(stage)


def zombie_in_commit(stage: Stage) -> str:
    """The same, stopped while its EndTxn is on the way: it arrives after the other copy's takeover."""
    trap = stage.servers.kafka_proxy.arm(Trap(proxy.END_TXN, "request", hold=True))
    told = _sprung(stage, trap, keep=True)
    return told or _superseded(stage, trap)


def _superseded(stage: Stage, trap: Trap | None = None) -> str:
    first = stage.connector.copy
    first.signal(signal.SIGSTOP)
    at_s = time.time()
    stage.origin.end_readers(stage.connector.name)
    stage.origin.proxy.cut()  # a walsender with much to say does not end before that
    second = stage.connector.start("--take-over")

    def took_over() -> bool:
        return stage.positions.made_after(at_s, within_s=0.5) is not None or not second.alive

    if not stage.until(took_over, within_s=60):
        stage.violations.append("a second copy does not take over from one that is stopped")
    if trap is not None:
        stage.servers.kafka_proxy.disarm(trap)
    first.signal(signal.SIGCONT)
    return stage.one_of_two(first, second)


def broker_killed(stage: Stage, *, connector_too: bool = False) -> str:
    stage.servers.kafka.kill()
    killed_at_s = stage.kill() if connector_too else None
    stage.sleep(0, 2)
    stage.servers.kafka.start()
    if killed_at_s is not None:
        stage.connector.start()
        stage.settled(killed_at_s)
    return ""


def broker_paused(least_s: float, most_s: float, stage: Stage) -> str:
    pause_s = stage.between(least_s, most_s)
    stage.servers.kafka.pause()
    try:
        time.sleep(pause_s)
    finally:
        stage.servers.kafka.resume()
    return f"{pause_s:.1f} s"


def source_restarted(stage: Stage, *, connector_too: bool = False) -> str:
    stage.origin.die()
    killed_at_s = stage.kill() if connector_too else None
    stage.sleep(0, 1.5)
    stage.origin.start()
    if killed_at_s is not None:
        stage.connector.start()
        stage.settled(killed_at_s)
    return ""


def source_paused(stage: Stage) -> str:
    stage.origin.server.pause()
    try:
        stage.sleep(0.5, 4)
    finally:
        stage.origin.server.resume()
    return ""


def readers_ended(stage: Stage) -> str:
    stage.origin.end_readers(stage.connector.name)
    return ""


def sessions_ended(stage: Stage) -> str:
    stage.origin.end_sessions(stage.connector.name)
    return ""


def checked(stage: Stage) -> str:
    """Looked at by somebody else, which must be none of its business."""
    copy = stage.connector.copy
    code = stage.connector.look("check")
    if not copy.alive and any(words in copy.said() for words in stage.origin.superseded):
        stage.violations.append(f"cdc check has ended {copy.log.name}")
    return f"exit {code}"


def _proxy(stage: Stage, which: str) -> Proxy:
    return stage.servers.kafka_proxy if which == "Kafka" else stage.origin.proxy


def cut(which: str, stage: Stage) -> str:
    return f"{_proxy(stage, which).cut()} connections"


def half_open(which: str, stage: Stage) -> str:
    """Nothing passes and nothing is closed; then it goes on, or a reset comes at last."""
    way, kept_s = _proxy(stage, which), stage.between(1, 7)
    way.freeze()
    time.sleep(kept_s)
    resumed = stage.random.random() < 0.5
    if not resumed:
        way.cut()
    way.thaw()
    return f"{kept_s:.1f} s, then {'resumed' if resumed else 'cut'}"


def refused(which: str, stage: Stage) -> str:
    way = _proxy(stage, which)
    way.refuse(True)
    way.cut()
    stage.sleep(0.5, 4)
    way.refuse(False)
    return ""


def reply_lost(api_key: int, stage: Stage) -> str:
    """The broker has done it, the answer never comes."""
    trap = stage.servers.kafka_proxy.arm(Trap(api_key, "response", lose=True))
    return _sprung(stage, trap)


def request_lost(api_key: int, stage: Stage) -> str:
    trap = stage.servers.kafka_proxy.arm(Trap(api_key, "request", lose=True))
    return _sprung(stage, trap)


def end_held(side: str, stage: Stage) -> str:
    """EndTxn is on its way for long, and arrives; or it arrives and the answer is late."""
    kept_s = stage.between(0.5, 8)
    trap = stage.servers.kafka_proxy.arm(Trap(proxy.END_TXN, "request" if side == "request" else "response", hold=True))
    told = _sprung(stage, trap, keep=True)
    time.sleep(kept_s)
    stage.servers.kafka_proxy.disarm(trap)
    return told or f"{kept_s:.1f} s"


def end_held_and_killed(stage: Stage) -> str:
    """EndTxn is held, its sender dies, the next copy starts; then the old EndTxn arrives, before or after fencing."""
    trap = stage.servers.kafka_proxy.arm(Trap(proxy.END_TXN, "request", hold=True))
    told = _sprung(stage, trap, keep=True)
    killed_at_s = stage.kill()
    early = stage.random.random() < 0.5
    stage.connector.start()
    if early:
        stage.sleep(0, 1.5)
        trap.release()
    stage.recovered(killed_at_s)
    stage.servers.kafka_proxy.disarm(trap)
    return told or ("released early" if early else "released after the next commit")


def killed_at(api_key: int, stage: Stage) -> str:
    """SIGKILL at the moment a request of this kind passes; the request itself arrives."""
    copy = stage.connector.copy
    trap = stage.servers.kafka_proxy.arm(Trap(api_key, "request", seen=lambda: copy.signal(signal.SIGKILL)))
    told = _sprung(stage, trap)
    stage.restart(stage.kill())
    return told


def killed_at_start(api_key: int, stage: Stage) -> str:
    """The same for what is asked at the start only."""
    stage.kill()
    trap = Trap(api_key, "request", seen=lambda: stage.connector.copy.signal(signal.SIGKILL))
    stage.servers.kafka_proxy.arm(trap)
    stage.connector.start()
    told = _sprung(stage, trap)
    stage.restart(stage.kill())
    return told


def _sprung(stage: Stage, trap: Trap, *, keep: bool = False) -> str:
    sprung = stage.until(trap.sprung.is_set, within_s=_SPRUNG_S)
    if not keep or not sprung:
        stage.servers.kafka_proxy.disarm(trap)
    return "" if sprung else "not reached"


FAULTS: Final[Deck] = {
    "SIGKILL": (4, sigkill),
    "SIGSTOP": (2, sigstop),
    "crash: connected": (1, partial(crash, "source.connected", 1)),
    "crash: before fence": (1, partial(crash, "sink.fence", 1)),
    "crash: state read": (1, partial(crash, "sink.fenced", 1)),
    "crash: before a transaction": (1, partial(crash, "source.frame", 50)),
    "crash: in a transaction": (2, partial(crash, "source.change", 300)),
    "crash: written": (1, partial(crash, "sink.write", 800)),
    "crash: before commit": (2, partial(crash, "sink.commit", 8)),
    "crash: in commit": (2, partial(crash, "sink.commit.delayed", 8)),
    "crash: committed": (2, partial(crash, "sink.commit.answer", 8)),
    "crash: before acknowledge": (1, partial(crash, "source.acknowledge", 8)),
    "crash: acknowledged": (1, partial(crash, "source.acknowledged", 8)),
    "second copy": (2, second_copy),
    "zombie": (1, zombie),
    "zombie in commit": (2, zombie_in_commit),
    "broker killed": (1, broker_killed),
    "broker and connector killed": (1, partial(broker_killed, connector_too=True)),
    "broker paused": (1, partial(broker_paused, 1, 4)),
    "broker paused for long": (1, partial(broker_paused, 8, 10)),
    "source restarted": (2, source_restarted),
    "source and connector killed": (1, partial(source_restarted, connector_too=True)),
    "source paused": (1, source_paused),
    "log's sender ended": (1, readers_ended),
    "sessions ended": (1, sessions_ended),
    "looked at by cdc check": (1, checked),
    "cut: Kafka": (1, partial(cut, "Kafka")),
    "cut: source": (1, partial(cut, "source")),
    "half-open: Kafka": (1, partial(half_open, "Kafka")),
    "half-open: source": (1, partial(half_open, "source")),
    "refused: Kafka": (1, partial(refused, "Kafka")),
    "refused: source": (1, partial(refused, "source")),
    "reply lost: Produce": (1, partial(reply_lost, proxy.PRODUCE)),
    "reply lost: EndTxn": (2, partial(reply_lost, proxy.END_TXN)),
    "reply lost: AddPartitions": (1, partial(reply_lost, proxy.ADD_PARTITIONS)),
    "request lost: EndTxn": (1, partial(request_lost, proxy.END_TXN)),
    "EndTxn held": (1, partial(end_held, "request")),
    "EndTxn reply held": (1, partial(end_held, "response")),
    "EndTxn held, sender killed": (2, end_held_and_killed),
    "SIGKILL at EndTxn": (1, partial(killed_at, proxy.END_TXN)),
    "SIGKILL at Produce": (1, partial(killed_at, proxy.PRODUCE)),
    "SIGKILL at InitProducerId": (1, partial(killed_at_start, proxy.INIT_PRODUCER_ID)),
}
"""How many of each a deck holds, and the fault; the origin adds its own. Decks are shuffled and dealt one by one."""

OPENING: Final = (
    ("sink.check", 1),
    ("sink.fenced", 1),
    ("sink.commit.answer", 1),  # the name is taken
    ("source.hold", 1),
    ("source.held", 1),
    ("source.held", 1),
    ("sink.commit.delayed", 1),
    ("snapshot.chunk", 2),
    ("sink.commit", 2),
    ("sink.commit.answer", 2),
    ("sink.commit.delayed", 3),
    ("snapshot.view", 1),
    ("snapshot.chunk", 5),
    ("sink.commit.answer", 4),
)
"""Crashes of the snapshot, from nothing on: each is one run of the connector."""


def dealt(deck: Deck, choose: random.Random) -> list[str]:
    """The deck, shuffled."""
    kinds = [kind for kind, (number, _) in deck.items() for _ in range(number)]
    choose.shuffle(kinds)
    return kinds
