"""A model of a fleet: rosters as they are, and beside them a group, Kafka's fences, zombies and partitions.

What is asked of it, whatever happens in whatever order: a commit is by the newest fence; nobody who was out fences who
is in; what moves at a fault is the share of the member that was hit, and what evens out; and when faults cease, each
connector has one copy at work, on the member that has its place.
"""

from __future__ import annotations

import random
from collections import defaultdict
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cdc.fleet.roster import Job, Jobs, Kill, Roster, Start, Stop
from cdc.model.errors import FencedError
from tests.conftest import FULL

SESSION_S = 6.0
STEP_S = 0.5
QUIET_STEPS = 400


@dataclass
class Copy:
    """A child: at work with the epoch of its fence, or standing by without one."""

    name: str
    epoch: int | None
    stopping: bool = False


@dataclass
class Member:
    """A machine: its roster, what runs on it, and what the group does not know of it."""

    number: int
    roster: Roster = field(default_factory=Roster)
    copies: dict[str, Copy] = field(default_factory=dict)
    held: set[int] = field(default_factory=set)
    """The places that the group takes to be this member's."""
    silent_s: float | None = None
    """Since when the group has not heard it."""
    frozen: bool = False
    cut: bool = False
    out: bool = False
    """The group has given it up, which it does not know yet."""


class World:
    """Members, their group and Kafka."""

    def __init__(self, members: int, connectors: int) -> None:
        self.now = 0.0
        self.jobs = Jobs(Job(f"c{n}", n, "1") for n in range(connectors))
        self.epochs: dict[str, int] = defaultdict(int)
        self.committed: dict[str, int] = defaultdict(int)
        self.at_work: dict[str, set[int]] = defaultdict(set)
        """The members on which a copy is that has fenced all before it, as the source shows it."""
        self.owner: dict[int, int] = {}
        self.waiting: dict[int, int] = {}
        """Places that are taken back, and the members that are to have them."""
        self.members: dict[int, Member] = {}
        self.moves = self.fences = self.stale_fences = 0
        self._numbers = 0
        for _ in range(members):
            self.join()

    # --- The group ----------------------------------------------------------------------------------------------------

    def join(self) -> None:
        member = Member(self._numbers)
        member.roster.entries(self.jobs)
        self.members[self._numbers] = member
        self._numbers += 1
        self.share()

    def heard(self) -> list[Member]:
        return [member for member in self.members.values() if not member.out]

    def share(self) -> None:
        """Sticky and cooperative: what nobody has is given to who has least, and only what evens out is taken back."""
        heard = self.heard()
        if not heard:
            self.owner.clear()
            self.waiting.clear()
            return
        numbers = {member.number for member in heard}
        of: dict[int, list[int]] = {member.number: [] for member in heard}
        free = []
        for place in range(len(self.jobs.by_name)):
            to = self.waiting.get(place, self.owner.get(place))
            if to in numbers:
                of[to].append(place)
            else:
                free.append(place)
        least, more = divmod(len(self.jobs.by_name), len(heard))
        by_size = sorted(of, key=lambda number: -len(of[number]))
        for rank, number in enumerate(by_size):
            most = least + (1 if rank < more else 0)
            free += of[number][most:]
            del of[number][most:]
        for rank, number in enumerate(by_size):
            wanted = least + (1 if rank < more else 0) - len(of[number])
            for place in [free.pop() for _ in range(wanted)]:
                of[number].append(place)
                self._move(place, number)

    def _move(self, place: int, to: int) -> None:
        """Of a member that is heard a place is taken back first."""
        self.moves += 1
        before = self.owner.get(place)
        self.waiting[place] = to
        if before is not None and before in self.members and not self.members[before].out:
            self.members[before].roster.revoked([place])
        else:
            self.owner.pop(place, None)

    def hand_over(self) -> None:
        """Give those places that their former members have let go of."""
        given: dict[int, list[int]] = defaultdict(list)
        for place, to in list(self.waiting.items()):
            before = self.members.get(self.owner.get(place, -1))
            if before is not None and not before.out and before.roster.busy([place]):
                continue
            member = self.members.get(to)
            if member is None or member.out or member.frozen or member.cut:
                continue
            del self.waiting[place]
            self.owner[place] = to
            given[to].append(place)
        for number, places in given.items():
            self.members[number].roster.assigned(places, self.now)

    # --- Faults -------------------------------------------------------------------------------------------------------

    def kill(self, member: Member) -> None:
        for copy in member.copies.values():
            self.at_work[copy.name].discard(member.number)
        member.copies.clear()
        member.silent_s = member.silent_s or self.now
        member.frozen = True
        self.dead.add(member.number)

    @property
    def dead(self) -> set[int]:
        return self.__dict__.setdefault("_dead", set())

    def freeze(self, member: Member) -> None:
        member.frozen, member.silent_s = True, member.silent_s or self.now

    def cut(self, member: Member) -> None:
        member.cut, member.silent_s = True, member.silent_s or self.now

    def come_back(self, member: Member) -> None:
        """Thawed and healed. What the group has decided meanwhile it hears only with its next heartbeat."""
        if member.number in self.dead:
            del self.members[member.number]
            self.dead.discard(member.number)
            self.join()
            return
        member.frozen = member.cut = False

    def leave(self, member: Member) -> None:
        if member.frozen or member.cut or len(self.heard()) < 2:
            return
        for copy in member.copies.values():
            self.at_work[copy.name].discard(member.number)
        del self.members[member.number]
        for place in [place for place, owner in self.owner.items() if owner == member.number]:
            del self.owner[place]
        self.share()

    def crash(self, member: Member, choose: random.Random) -> None:
        """A child ends by itself."""
        if member.copies and not member.frozen:
            self._end(member, choose.choice(sorted(member.copies)), 1)

    def fence_by_hand(self, name: str) -> None:
        """Somebody runs the connector elsewhere for a moment."""
        self.epochs[name] += 1
        self.fences += 1
        self.at_work[name].clear()

    # --- Time ---------------------------------------------------------------------------------------------------------

    def step(self) -> None:
        self.now += STEP_S
        for member in list(self.members.values()):
            if member.silent_s is not None and not member.out and self.now - member.silent_s >= SESSION_S:
                member.out = True
                for place in [place for place, owner in self.owner.items() if owner == member.number]:
                    del self.owner[place]
                self.share()
        for member in list(self.members.values()):
            if member.frozen:
                continue
            self._run(member)
            if member.cut or member.silent_s is None:
                continue
            member.silent_s = None  # its first heartbeat is answered
            if member.out:
                member.out = False
                member.roster.lost()
                self.share()
                member.roster.assigned([], self.now)
        self.hand_over()

    def _run(self, member: Member) -> None:
        """Children first: they may have been fenced while all was frozen. Then what the roster decides, on old news."""
        for copy in list(member.copies.values()):
            if copy.stopping:
                self._end(member, copy.name, 0)
            elif not member.cut:
                self._commit(member, copy)
        for action in member.roster.decide(self.now):
            match action:
                case Start(name, take_over):
                    member.copies[name] = Copy(name, None)
                    if take_over and not member.cut:
                        self._fence(member, member.copies[name])
                case Stop(name):
                    member.copies[name].stopping = True
                case Kill(name):
                    self._end(member, name, -9)

    def _fence(self, member: Member, copy: Copy) -> None:
        self.fences += 1
        if self.owner.get(self.jobs.by_name[copy.name].place) not in (member.number, None):
            self.stale_fences += 1
        self.epochs[copy.name] += 1
        copy.epoch = self.epochs[copy.name]
        self.at_work[copy.name] = {member.number}

    def _commit(self, member: Member, copy: Copy) -> None:
        newest = self.epochs[copy.name]
        if copy.epoch is None:
            if not self.at_work[copy.name]:  # it has stood by, and nobody is seen any more
                self._fence(member, copy)
            return
        if copy.epoch < newest:
            self._end(member, copy.name, FencedError.exit_code)
            return
        assert copy.epoch == newest >= self.committed[copy.name]
        self.committed[copy.name] = newest

    def _end(self, member: Member, name: str, code: int) -> None:
        del member.copies[name]
        self.at_work[name].discard(member.number)
        member.roster.ended(name, code, self.now)

    # --- What must hold -----------------------------------------------------------------------------------------------

    def settle(self) -> None:
        for member in list(self.members.values()):
            self.come_back(member)
        for _ in range(QUIET_STEPS):
            self.step()
        for name, job in self.jobs.by_name.items():
            copies = {member.number: member.copies[name] for member in self.members.values() if name in member.copies}
            assert set(copies) == {self.owner[job.place]}, (name, copies)
            (copy,) = copies.values()
            assert copy.epoch == self.epochs[name] == self.committed[name]
        shares = [sum(owner == number for owner in self.owner.values()) for number in self.members]
        assert max(shares) - min(shares) <= 1


FAULTS = ("kill", "freeze", "cut", "come back", "join", "leave", "crash", "by hand", "time", "time", "long time")


def play(world: World, faults: list[tuple[str, int]]) -> None:
    for kind, number in faults:
        choose = random.Random(number)
        member = choose.choice(list(world.members.values()))
        members, connectors = len(world.heard()), len(world.jobs.by_name)
        before = world.moves
        alone = members - (not member.out) < 1
        match kind:
            case "kill" if not alone:
                world.kill(member)
            case "freeze" if not alone:
                world.freeze(member)
            case "cut" if not alone:
                world.cut(member)
            case "come back":
                world.come_back(member)
            case "join":
                world.join()
            case "leave":
                world.leave(member)
            case "crash":
                world.crash(member, choose)
            case "by hand":
                world.fence_by_hand(choose.choice(list(world.jobs.by_name)))
            case "long time":
                for _ in range(60):
                    world.step()
            case _:
                world.step()
        if kind in ("join", "leave", "come back"):
            least = max(1, min(members, len(world.heard())))
            assert world.moves - before <= 2 * -(-connectors // least) + 1, (kind, world.moves - before)


def faults(most: int) -> st.SearchStrategy[list[tuple[str, int]]]:
    return st.lists(st.tuples(st.sampled_from(FAULTS), st.integers(0, 10_000)), max_size=most)


@given(st.integers(1, 6), st.integers(1, 14), faults(60))
def test_a_commit_is_by_the_newest_fence_and_all_comes_right(
    members: int, connectors: int, played: list[tuple[str, int]]
) -> None:
    world = World(members, connectors)
    world.step()
    play(world, played)
    world.settle()


def test_one_fault_moves_one_share() -> None:
    """Ten members of a hundred connectors: one is lost, and comes back."""
    world = World(10, 100)
    for _ in range(10):
        world.step()
    before, fences = world.moves, world.fences
    world.freeze(world.members[3])
    for _ in range(60):
        world.step()
    assert (world.moves - before, world.fences - fences) == (10, 10)
    world.come_back(world.members[3])
    for _ in range(60):
        world.step()
    assert (world.moves - before, world.fences - fences) == (20, 20)
    assert world.stale_fences == 0
    world.settle()


def test_a_zombie_fences_nobody() -> None:
    """Frozen with its children for long, then awake before it hears of the group: they end, and nothing is started."""
    world = World(2, 6)
    for _ in range(10):
        world.step()
    zombie = world.members[0]
    world.freeze(zombie)
    for _ in range(40):
        world.step()
    fences = world.fences
    zombie.frozen, zombie.cut = False, False
    silent, zombie.silent_s = zombie.silent_s, None  # it runs, and its heartbeats are not answered yet
    for _ in range(10):
        world.step()
    assert not zombie.copies
    assert world.fences == fences
    zombie.silent_s = silent
    world.settle()


@pytest.mark.full
@pytest.mark.timeout(3600)
@settings(max_examples=5 if FULL else 1)
@given(faults(40))
def test_a_thousand_members_and_twenty_thousand_connectors(played: list[tuple[str, int]]) -> None:
    world = World(0, 20_000)
    world.members = {number: Member(number) for number in range(1_000)}
    world._numbers = 1_000
    for member in world.members.values():
        member.roster.entries(world.jobs)
    world.share()
    world.step()
    play(world, played)
    world.settle()
