"""A binlog position and a set of GTIDs make up the position of a connector to MySQL or MariaDB. Pure.

A binlog is a sequence of files ``name.NNNNNN``, the number with six digits and, past 999999, more: numbers are
compared, never names. A commit position is the file's number and an offset in it, packed into 64 bits: 32 for the
offset. Where one transaction makes a file longer than 3 GiB, the offsets behind are told apart in steps of 64 bytes: no
transaction is so short, so each still has a commit position of its own, in their order, up to 67 GiB.
GTID sets: https://dev.mysql.com/doc/refman/8.4/en/replication-gtids-concepts.html,
https://mariadb.com/kb/en/gtid/.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from struct import pack
from typing import Final, NamedTuple, Self
from uuid import UUID

from cdc.model.errors import GapError, OperatorError

FIRST: Final = 4
"""The offset of a file's first event."""
LARGEST: Final = 0xFFFFFFFF
EXACT: Final = 3 << 30
"""Offsets below this one are in a commit position as they are."""
_STEP_BITS: Final = 6
_LAST_FILE: Final = 0x7FFFFFFF
"""Where both servers end to count."""
_DIGITS: Final = 10
_MARIADB: Final = re.compile(r"(\d+)-(\d+)-(\d+)")
SEEN: Final = "seen"
"""In an offset, what Kafka has of each server of a MariaDB's domains."""
_ANY: Final = 0
"""In place of a server's number."""
_TAG: Final = re.compile(r"[a-z_][a-z0-9_]{0,31}")


class BinlogPosition(NamedTuple):
    """Is an offset in a file of the binlog. It is a tuple because one is made for every event."""

    file: str
    offset: int

    @property
    def number(self) -> int:
        """Return the file's number."""
        return file_number(self.file)

    @property
    def commit(self) -> int:
        """Return it as a commit position. Raises GapError for one that does not fit."""
        offset = self.offset
        if offset >= EXACT:
            offset = EXACT + (offset - EXACT >> _STEP_BITS)
            if offset > LARGEST:
                raise GapError(
                    f"the binlog file {self.file} has grown past 67 GiB, where its offsets cannot be told apart",
                    hint="write less in one transaction: max_binlog_cache_size limits it; then "
                    "cdc snapshot start CONNECTOR.yaml --after-gap",
                )
        return file_number(self.file) << 32 | offset

    @property
    def order(self) -> tuple[int, int]:
        """Return by what positions are compared exactly."""
        return file_number(self.file), self.offset

    def __str__(self) -> str:
        return f"{self.file}:{self.offset}"


@lru_cache
def file_number(file: str) -> int:
    """Return ``1000000`` of ``binlog.1000000``. Raises OperatorError for what is no binlog's name."""
    _, dot, digits = file.rpartition(".")
    if not dot or not digits.isascii() or not digits.isdigit() or len(digits) > _DIGITS or int(digits) > _LAST_FILE:
        raise OperatorError(f"“{file[:80]}” is not the name of a binlog file")
    return int(digits)


def file_named(like: str, number: int) -> str:
    """Name another file of the binlog that `like` belongs to."""
    return f"{like.rpartition('.')[0]}.{number:06d}"


def position_at(commit: int, like: str) -> BinlogPosition:
    """Return the binlog position of a commit position, in the binlog that the file `like` belongs to.

    Where offsets are told apart in steps, it is the beginning of the step.
    """
    offset = commit & LARGEST
    if offset >= EXACT:
        offset = EXACT + (offset - EXACT << _STEP_BITS)
    return BinlogPosition(file_named(like, commit >> 32), offset)


class GtidSet:
    """Holds, by MySQL server and tag, the numbers of its transactions, as ranges with inclusive ends."""

    def __init__(self, ranges: Mapping[tuple[str, str], Iterable[tuple[int, int]]] | None = None) -> None:
        self._ranges = {of: list(spans) for of, spans in (ranges or {}).items()}

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read the server's text: ``uuid:1-3:7,uuid:tag:1``. Raises OperatorError."""
        made = cls()
        for member in text.replace("\n", "").split(","):
            if not member.strip():
                continue
            uuid, *parts = member.strip().lower().split(":")
            tag = ""
            try:
                uuid = str(UUID(uuid))
                for part in parts:
                    if _TAG.fullmatch(part):
                        tag = part
                        continue
                    first, _, last = part.partition("-")
                    begin, end = int(first), int(last or first)
                    if not 0 < begin <= end:
                        raise ValueError(part)
                    made._add(uuid, tag, begin, end)
            except ValueError:
                raise OperatorError(f"“{text[:80]}” is not a set of GTIDs") from None
        return made

    def add(self, gtid: str) -> None:
        """Add one transaction: ``uuid:7`` or ``uuid:tag:7``."""
        of, number = _name(gtid)
        self._add(*of, number, number)

    def add_numbers(self, uuid: str, first: int, last: int) -> None:
        """Add transactions without a tag, from the first number to the last."""
        self._add(uuid, "", first, last)

    def _add(self, uuid: str, tag: str, first: int, last: int) -> None:
        spans = self._ranges.setdefault((uuid, tag), [])
        if spans and first == spans[-1][1] + 1:  # nearly always: the next one
            spans[-1] = (spans[-1][0], last)
            return
        if not spans or first > spans[-1][1]:  # as a server's text has them: a long one is read in time
            spans.append((first, last))
            return
        merged: list[tuple[int, int]] = []
        for start, end in sorted([*spans, (first, last)]):
            if merged and start <= merged[-1][1] + 1:
                merged[-1] = (merged[-1][0], max(merged[-1][1], end))
            else:
                merged.append((start, end))
        self._ranges[uuid, tag] = merged

    def __contains__(self, gtid: str) -> bool:
        of, number = _name(gtid)
        return self._holds(of, number, number)

    def _holds(self, of: tuple[str, str], first: int, last: int) -> bool:
        spans = self._ranges.get(of, [])
        at = bisect_right(spans, (first, LARGEST << 32)) - 1
        return at >= 0 and spans[at][0] <= first and last <= spans[at][1]

    def __le__(self, other: GtidSet) -> bool:
        return all(other._holds(of, *span) for of, spans in self._ranges.items() for span in spans)

    def joined(self, other: GtidSet, *, but: str) -> GtidSet:
        """Return a set that has what the other one has, too, except for transactions of one server."""
        made = GtidSet(self._ranges)
        for (uuid, tag), spans in other._ranges.items():
            for first, last in spans if uuid != but else ():
                made._add(uuid, tag, first, last)
        return made

    def without(self, gtids: Iterable[str]) -> GtidSet:
        """Copy the set without single transactions."""
        made = GtidSet(self._ranges)
        for gtid in gtids:
            of, number = _name(gtid)
            left: list[tuple[int, int]] = []
            for first, last in made._ranges.get(of, []):
                if first <= number <= last:
                    left += [(first, number - 1)] if first < number else []
                    left += [(number + 1, last)] if number < last else []
                else:
                    left.append((first, last))
            made._ranges[of] = left
        return made

    def __str__(self) -> str:
        def spans(of: list[tuple[int, int]]) -> str:
            return ":".join(f"{first}-{last}" if last > first else f"{first}" for first, last in of)

        return ",".join(
            f"{uuid}:{tag}:{spans(of)}" if tag else f"{uuid}:{spans(of)}"
            for (uuid, tag), of in sorted(self._ranges.items())
            if of
        )

    def encode(self) -> bytes:
        """Write it as COM_BINLOG_DUMP_GTID takes it; with tags only if there are any: servers before 8.3 know none."""
        of = {name: spans for name, spans in sorted(self._ranges.items()) if spans}
        tagged = any(tag for _, tag in of)
        parts = [pack("<Q", 1 << 56 | len(of) << 8 | 1 if tagged else len(of))]
        for (uuid, tag), spans in of.items():
            parts.append(UUID(uuid).bytes)
            if tagged:
                parts.append(bytes([len(tag) << 1]) + tag.encode())
            parts.append(pack("<Q", len(spans)))
            parts += [pack("<QQ", first, last + 1) for first, last in spans]
        return b"".join(parts)


def _name(gtid: str) -> tuple[tuple[str, str], int]:
    rest, _, number = gtid.rpartition(":")
    uuid, _, tag = rest.partition(":")
    return (uuid, tag), int(number)


def _mariadb(text: str, what: str) -> Iterator[tuple[int, int, int]]:
    """Give domain, server and sequence of each member."""
    for member in filter(None, (part.strip() for part in text.split(","))):
        found = _MARIADB.fullmatch(member)
        if found is None:
            raise OperatorError(f"“{text[:80]}” is not a {what} of GTIDs")
        yield int(found[1]), int(found[2]), int(found[3])


class GtidPosition:
    """Holds MariaDB's last transaction in each domain, ``domain-server-sequence``."""

    def __init__(self, last: Mapping[int, tuple[int, int]] | None = None) -> None:
        self._last = dict(last or {})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``0-1-5,1-2-7``. Raises OperatorError."""
        return cls({domain: (server, n) for domain, server, n in _mariadb(text, "position")})

    def add(self, gtid: str) -> None:
        """Add one transaction."""
        domain, server, sequence = gtid.split("-")
        self._last[int(domain)] = (int(server), int(sequence))

    def members(self) -> list[tuple[int, int, int]]:
        """Give domain, server and sequence of each domain's last."""
        return [(domain, server, n) for domain, (server, n) in sorted(self._last.items())]

    def within(self, domains: Collection[int]) -> Self:
        """Copy it without other domains than these."""
        return type(self)({domain: last for domain, last in self._last.items() if domain in domains})

    def __le__(self, other: GtidState) -> bool:
        """Tell whether `other` has its transactions. A domain alone does not: separated servers go on counting."""
        return all((domain, server, n) in other for domain, (server, n) in self._last.items())

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{n}" for domain, (server, n) in sorted(self._last.items()))


class GtidState:
    """Holds all that a MariaDB server has in its log: the last of each domain and server (`gtid_binlog_state`)."""

    def __init__(self, last: Mapping[tuple[int, int], int] | None = None) -> None:
        self._last = dict(last or {})

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read ``0-1-5,0-2-7``. Raises OperatorError."""
        return cls({(domain, server): n for domain, server, n in _mariadb(text, "state")})

    @property
    def domains(self) -> frozenset[int]:
        return frozenset(domain for domain, _ in self._last)

    @classmethod
    def begun(cls, logged: str, applied: str) -> Self:
        """Make what a reader knows of who begins at a server's end: all up to the last number of each domain.

        `logged` and `applied` are the server's `gtid_binlog_state` and `gtid_slave_pos`: a copy of another server does
        not have in its log what that one had logged. What is known so stands under the number of no server, 0.
        """
        made = cls()
        for domain, server, n in (*_mariadb(logged, "state"), *_mariadb(applied, "position")):
            for of in ((domain, server), (domain, _ANY)):
                made._last[of] = max(n, made._last.get(of, 0))
        return made

    def add(self, gtid: str) -> None:
        """Add one transaction."""
        domain, server, sequence = (int(part) for part in gtid.split("-"))
        self._last[domain, server] = sequence

    def unknown(self, domain: int, known: GtidState) -> list[str]:
        """Name the last of each server in a domain that `known` does not have."""
        upto = known._last.get((domain, _ANY), 0)
        return [
            f"{domain}-{server}-{n}"
            for (of, server), n in sorted(self._last.items())
            if of == domain and n > upto and (of, server, n) not in known
        ]

    def __str__(self) -> str:
        return ",".join(f"{domain}-{server}-{n}" for (domain, server), n in sorted(self._last.items()))

    def __contains__(self, gtid: tuple[int, int, int]) -> bool:
        domain, server, sequence = gtid
        return sequence <= self._last.get((domain, server), 0)
