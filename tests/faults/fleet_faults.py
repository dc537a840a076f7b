"""What is done to the members of a fleet; each leaves it whole."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final

from cdc.dev.servers import launch
from tests.faults.fleet_stage import ENDED_S, Seat, Stage, called


def killed(stage: Stage) -> None:
    """kill -9 of a member, whose children die with it; and it joins again."""
    seat = stage.random.choice(stage.seats)
    children = seat.family[1:]

    def kill() -> None:
        seat.send(signal.SIGKILL)
        assert seat.process is not None
        seat.process.wait(ENDED_S)

    stage.play("kill -9", stage.on(seat), kill)
    if alive := [pid for pid in children if launch.started_at(pid)]:
        stage.found.violations.append(f"{len(alive)} children have outlived their member")
    joined(stage, seat)


def joined(stage: Stage, seat: Seat) -> None:
    stage.play("join", set(), seat.start)


def frozen(stage: Stage, *, whole: bool = True) -> None:
    """SIGSTOP, of a member with its children or alone, for longer than its session; then it comes back."""
    seat = stage.random.choice(stage.seats)
    zombies = seat.children
    hit = stage.on(seat)

    def freeze() -> Callable[[], None]:
        seat.send(signal.SIGSTOP, whole=whole)
        stage.away.add(seat.name)
        return thaw

    def thaw() -> None:
        time.sleep(stage.random.uniform(0, 5))
        seat.send(signal.SIGCONT, whole=whole)
        until_s = time.monotonic() + ENDED_S
        while (alive := [pid for pid in zombies if launch.started_at(pid)]) and time.monotonic() < until_s:
            time.sleep(0.1)
        if alive:
            stage.found.violations.append(f"{len(alive)} fenced children of {seat.name} are still there")
        stage.away.clear()

    stage.play("frozen" if whole else "frozen alone", hit, freeze)


def cut_off(stage: Stage) -> None:
    """Nothing passes between a member and Kafka, for longer than its session; nor for its children."""
    seat = stage.random.choice(stage.seats)
    proxy = seat.proxy
    assert proxy is not None

    def cut() -> Callable[[], None]:
        proxy.freeze()
        stage.away.add(seat.name)
        return heal

    def heal() -> None:
        proxy.cut()
        proxy.thaw()
        stage.away.clear()

    stage.play("cut off from Kafka", stage.on(seat), cut)


def cut_briefly(stage: Stage) -> None:
    """For less than a session: nothing moves."""
    seat = stage.random.choice(stage.seats)
    proxy = seat.proxy
    assert proxy is not None
    before = stage.on(seat)

    def cut() -> None:
        proxy.refuse(True)
        proxy.cut()
        time.sleep(2.5)
        proxy.refuse(False)

    stage.play("cut off for 2.5 s", before, cut)
    if stage.on(seat) != before:
        stage.found.violations.append(f"connectors have moved from {seat.name}, which was away for 2.5 s")


def left(stage: Stage) -> None:
    """SIGTERM; and it joins again."""
    seat = stage.random.choice(stage.seats)

    def leave() -> None:
        if code := seat.leave():
            stage.found.violations.append(f"{seat.name} ended {code} after SIGTERM")

    stage.play("leave", stage.on(seat), leave)
    joined(stage, seat)


def rolled(stage: Stage) -> None:
    """Every member, one after the other."""

    def roll() -> None:
        for seat in stage.seats:
            seat.leave()
            seat.start()
            stage.shared()

    stage.play("rolled", {bank.name for bank in stage.banks}, roll)


def grown(stage: Stage) -> None:
    """One member more for a while."""
    joined(stage, stage.spare)

    def leave() -> None:
        stage.spare.leave()

    stage.play("leave", stage.on(stage.spare), leave)


def child_killed(stage: Stage) -> None:
    """One connector dies: its member starts it again, and no other is disturbed."""
    seat = stage.random.choice(stage.seats)
    pid = stage.random.choice(seat.children)
    stage.play("a connector killed", {called(pid).removeprefix("cdc-")}, partial(os.kill, pid, signal.SIGKILL))


FAULTS: Final[Mapping[str, tuple[int, Callable[[Stage], None]]]] = {
    "kill -9": (3, killed),
    "frozen": (2, frozen),
    "frozen alone": (1, partial(frozen, whole=False)),
    "cut off from Kafka": (2, cut_off),
    "cut off for 2.5 s": (1, cut_briefly),
    "leave": (2, left),
    "rolled": (1, rolled),
    "grown": (1, grown),
    "a connector killed": (1, child_killed),
}
QUICK: Final = ("frozen",)
"""What a short soak plays: it has a take-over, zombies, and a member that comes back."""
