"""What the soak needs of a database that it breaks: each is one file beside this one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from cdc.dev.servers.process import Server
from tests.faults.proxy import Proxy
from tests.faults.workload import Writer

if TYPE_CHECKING:
    from tests.faults.stage import Stage

Fault = Callable[["Stage"], str]
"""Plays the fault; says what came of it. Raises StuckError."""
Deck = Mapping[str, tuple[int, Fault]]
"""How many of each fault a deck holds."""


class Origin(ABC):
    """A database server of the soak's own, the connector's way to it through a proxy, everybody else's direct."""

    writer: ClassVar[type[Writer]]
    schema: ClassVar[str]
    """Where the tables are, as topics name it."""
    superseded: ClassVar[tuple[str, ...]] = ("another copy of connector",)
    """What a copy may say that ends because another has taken over."""

    def __init__(self, server: Server) -> None:
        self.server = server
        self.proxy = Proxy(kafka=False)

    def start(self) -> None:
        """Also again, after it died."""
        self.server.start()
        self.proxy.lead_to(urlsplit(self.server.url).port or 0)

    @abstractmethod
    def die(self) -> None:
        """End without goodbye; the next start recovers."""

    def close(self) -> None:
        """End everything; safe to call twice."""
        self.proxy.close()
        self.server.resume()
        self.server.stop(timeout_s=5)

    @property
    def url(self) -> str:
        """The database, direct, as its owner."""
        return self.server.url

    @property
    def proxied_url(self) -> str:
        """The database, as the connector sees it."""
        return self._proxied(self.url)

    def _proxied(self, url: str) -> str:
        parts = urlsplit(url)
        user, _, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}@127.0.0.1:{self.proxy.port}").geturl()

    @abstractmethod
    def captured(self) -> dict[str, Any]:
        """The connector's `source`, but for its url."""

    @abstractmethod
    def version(self) -> str:
        """Kind and version of the server."""

    @abstractmethod
    def log_end(self) -> int:
        """As a commit position."""

    def held(self, connector: str) -> int | None:
        """Up to which commit position the server may forget, for all the connector has told it; None: it was not told.

        Called by one thread only.
        """
        return None

    def left(self) -> list[str]:
        """What the workload has left open on the server, in words."""
        return []

    @abstractmethod
    def end_readers(self, connector: str) -> None:
        """End what sends the log to the connector, as an operator would."""

    @abstractmethod
    def end_sessions(self, connector: str) -> None:
        """End all sessions of the connector."""

    @abstractmethod
    def do(self, statement: str) -> None:
        """Run one statement of SQL, or several by semicolons, as the owner, on a session of its own."""

    @abstractmethod
    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """The rows of a query, as the owner."""

    @property
    def faults(self) -> Deck:
        """Faults that only this database has."""
        return {}
