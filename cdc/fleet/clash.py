"""What two entries of fleets must not share, and what they had better not. Pure.

A *server* is told by what stands in `source.url`: member or not, everybody judges an entry alike, so references are not
resolved for that. One text is one server; two are two, unless a reference stands in one of them: then nobody knows.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from cdc.config.config import ConnectorConfig
from cdc.config.source_config import MEANINGLESS
from cdc.model.errors import ConfigError

_SERVER: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://(?:.*@)?([^/?#]+)", re.DOTALL)
_HOST: Final = re.compile(r"(?:^|\s)(host|hostaddr|port)\s*=\s*('[^']*'|\S+)")
_REFERENCE: Final = re.compile(r"\$\{[^}]*\}")
_EVERY_ADDRESS: Final = ("0.0.0.0", "[::]")  # noqa: S104 - what a file may say
_FORCED: Final = "; if that is so, and meant: --force"


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What an entry's connector holds at a server, or writes to, beside the topics of its prefix."""

    server: str = ""
    """Of the source, as it is written; may be a reference."""
    claims: tuple[tuple[str, str], ...] = ()
    """Key of the file and value, of what one connector of a server alone may have."""
    outbox: str | None = None
    """The first part of the names of its outbox's topics."""


class Entered(Protocol):
    """What is compared of an entry."""

    @property
    def name(self) -> str: ...
    @property
    def prefix(self) -> str:
        """The first part of the names of its topics."""

    @property
    def listen(self) -> str | None:
        """The address of its metrics."""

    @property
    def held(self) -> Held: ...


def held_by(config: ConnectorConfig, url: str) -> Held:
    """Return what a connector holds; `url` is its source's as it is written."""
    source, claims = config.source, list[tuple[str, str]]()
    if "slot" not in MEANINGLESS.get(source.type, ()):
        claims.append(("source.slot", config.slot))
    if source.server_id is not None:
        claims.append(("source.server_id", str(source.server_id)))
    outbox = None if source.outbox is None else source.outbox.topic_prefix.partition(".")[0]
    return Held(server=_server(url), claims=tuple(claims), outbox=outbox)


def _server(url: str) -> str:
    hidden = {f"\0{number}\0": text for number, text in enumerate(_REFERENCE.findall(url))}
    for mark, text in hidden.items():
        url = url.replace(text, mark, 1)
    found = _SERVER.match(url)
    at = found[1].lower() if found else " ".join(sorted(f"{key}={of}" for key, of in _HOST.findall(url))) or url
    for mark, text in hidden.items():
        at = at.replace(mark, text)
    return at


def clashes(entry: Entered, others: Iterable[Entered], *, fleet: str | None = None) -> Iterator[ConfigError]:
    """Give why an entry cannot be beside others, which are those of `fleet`, if another one is named."""
    where = "" if fleet is None else f" of fleet {fleet}"
    for other in others:
        if other.name == entry.name:
            yield ConfigError(
                f"connector {entry.name} is there already" + (f", in fleet {fleet}" if fleet else ""),
                hint=f"cdc fleet remove {entry.name} --fleet {fleet}"
                if fleet
                else "cdc fleet add --replace CONNECTOR.yaml takes its place",
            )
            continue
        of = f"{other.name}{where}"
        if other.prefix == entry.prefix:
            yield ConfigError(
                f"connector {entry.name}: its topic prefix {entry.prefix} is that of connector {of}",
                hint="set sink.topic_prefix to one of its own",
            )
        elif entry.held.outbox == other.prefix or other.held.outbox == entry.prefix:
            outbox, tables = (entry, other) if entry.held.outbox == other.prefix else (other, entry)
            yield ConfigError(
                f"connector {entry.name}: the topics of {outbox.name}'s outbox would look like those of tables of "
                f"connector {tables.name}{where}: both begin with {tables.prefix}.",
                hint="set source.outbox.topic_prefix to one that no connector's topics have",
            )
        for key, value in _shared(entry, other):
            if entry.held.server == other.held.server:
                yield ConfigError(
                    f"connector {entry.name}: {key} {value} is that of connector {of}, at the same server",
                    hint=_own(key),
                )
        if fleet is None and _one_address(entry.listen, other.listen):
            yield ConfigError(
                f"connector {entry.name}: metrics.listen {entry.listen} is that of connector {of}, and "
                "one member may run both",
                hint="give each connector a port of its own, or none: a member shows its connectors' metrics, too",
            )


def doubts(entry: Entered, others: Iterable[Entered], *, fleet: str | None = None) -> Iterator[ConfigError]:
    """Give why an entry had better not be beside others, though it may be right: who says so has it added."""
    where = "" if fleet is None else f" of fleet {fleet}"
    for other in others:
        if other.name == entry.name:
            continue
        of = f"{other.name}{where}"
        if _folded(entry.name) == _folded(other.name):
            yield ConfigError(
                f"connector {entry.name} has nearly the name of connector {of}",
                hint="give it another name: slots, locks and topics of the two are taken for each other's" + _FORCED,
            )
        elif _folded(entry.prefix) == _folded(other.prefix):
            yield ConfigError(
                f"connector {entry.name}: its topic prefix {entry.prefix} is nearly that of connector {of}, "
                f"{other.prefix}",
                hint="set sink.topic_prefix to one that nobody takes for it" + _FORCED,
            )
        for key, value in _shared(entry, other):
            known = not (_REFERENCE.search(entry.held.server) or _REFERENCE.search(other.held.server))
            if entry.held.server != other.held.server and not known:
                yield ConfigError(
                    f"connector {entry.name}: {key} {value} is that of connector {of}, and whether their "
                    "servers are the same cannot be told: a reference stands for one of them",
                    hint=f"{_own(key)}; they may be two servers{_FORCED}",
                )


def _shared(entry: Entered, other: Entered) -> list[tuple[str, str]]:
    return [claim for claim in entry.held.claims if claim in other.held.claims]


def _own(key: str) -> str:
    return f"set {key} to one of its own"


def _folded(name: str) -> str:
    """Write names alike that people, and what names are made into, take for the same."""
    return re.sub(r"[-_]", "", name).lower()


def _one_address(mine: str | None, other: str | None) -> bool:
    if mine is None or other is None:
        return False
    (host, port), (other_host, other_port) = ((at.rpartition(":")[0].lower(), at.rpartition(":")[2]) for at in
                                              (mine, other))  # fmt: skip
    every = host in _EVERY_ADDRESS or other_host in _EVERY_ADDRESS
    return int(port) == int(other_port) and (every or host == other_host)
