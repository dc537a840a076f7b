"""The one tree of errors. The class says who acts; the message says what and where; the hint names the next step.

    CdcError
    ├── ConfigError       the user corrects a file or a command line         exit 2
    │   └── StartNeededError  a running connector's file says what a start alone takes up  exit 1
    ├── OperatorError     the operator does one step on a server             exit 1
    │   ├── VerdictError      position or topics do not go with what was found  exit 4
    │   │   └── GapError          log after the position is gone
    │   ├── LeftOutError      a table cannot be captured for now: the other tables go on
    │   ├── TopicError        a table's topic, or its schema at a registry, is not right: the others go on
    │   ├── LoginError        a server refuses who logs in: the file may have another login by now
    │   ├── UnloggedError a server writes no log: what is written now never comes
    │   ├── TooLargeError a record above the broker's limit; may be a dead letter instead
    │   └── FencedError   another copy of the connector has taken over     exit 3
    ├── RetryableError    nobody: the pipeline goes on from its position
    │   ├── ChangedError      what is relied on has changed: the next session, at once, compares it with the position
    │   └── UnreadableError   a server fails to read its own log; if it always does, a gap for those who say so
    └── BugError          we do: what should be impossible has happened      exit 1
        └── ProtocolError     foreign or truncated bytes from a server

Drivers' exceptions are translated where the driver is called, with ``raise ... from exc``. No message holds a row's
value or a secret: names, counts and positions only.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final


def _text(given: str) -> str:
    """Return what can be written anywhere: a file's name, or a server's words, may be bytes that are no UTF-8."""
    return given if given.isascii() else given.encode(errors="backslashreplace").decode()


class CdcError(Exception):
    """The base of all errors raised on purpose; ``hint`` is the next step, often a statement or command."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        message = _text(message)
        super().__init__(message)
        self.message = message
        self.hint = hint if hint is None else _text(hint)

    def __reduce__(self) -> tuple[object, ...]:
        """Go to another process as it is: Python would call the class with its message alone."""
        return _as_it_was, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        return f"{self.message}\n  hint: {self.hint}" if self.hint else self.message


def _as_it_was(of: type[CdcError], args: tuple[object, ...], state: Mapping[str, object]) -> CdcError:
    error = of.__new__(of, *args)
    error.__dict__.update(state)
    return error


class ConfigError(CdcError):
    """A file, an option or an environment variable is wrong; nothing has been started."""

    exit_code = 2


class StartNeededError(ConfigError):
    """A running connector's file, read again, says what a start alone takes up: what ends so is to be started again."""

    exit_code = 1


class OperatorError(CdcError):
    """A server is not as it must be; going on would lose data or cannot work until someone acts."""


class VerdictError(OperatorError):
    """The position, or the topics, do not go with what was found: each start finds the same until somebody decides.

    What is put right at a server alone (a right, a setting) is no verdict: there the next start goes on by itself.
    """

    exit_code = 4


class GapError(VerdictError):
    """The log after the position is gone, or cannot be followed: only reading the tables again can close the gap.

    `may_pass`: the next start may find it otherwise, so that the exit code asks for one. `elsewhere`: the server writes
    another log than that of the position; should that come back, what was written meanwhile is not in it.
    """

    elsewhere = False

    def __init__(self, message: str, *, hint: str | None = None, may_pass: bool = False) -> None:
        super().__init__(message, hint=hint)
        if may_pass:
            self.exit_code = OperatorError.exit_code
        self.may_pass = may_pass


class LeftOutError(OperatorError):
    """A table cannot be captured until somebody puts it right at the server: it has no key, or may not be read.

    One that was captured is captured no more for now, and the others go on. Once it is right again, its rows are read
    into its topic, and those that are gone are deleted: what it changes meanwhile is in that reading.

    Where no other is left it may be in the middle of being changed: a dump that is restored makes keys last. So a
    connector that has followed it looks again for a while before it ends, which loses nothing.
    """


class TopicError(OperatorError):
    """A topic of a table is not as it must be, or a registry does not take its schema: the other tables go on.

    What the table changes meanwhile is not published. Once its topic is right, its rows are read into it, and those
    that are gone are deleted.
    """

    def __init__(self, message: str, *, hint: str, topic: str) -> None:
        """`topic` is the table's, also where it is the log beside it that is not right."""
        super().__init__(message, hint=hint)
        self.topic = topic
        self.beside: Sequence[TopicError] = ()
        """What else was found at the same time."""

    @property
    def by_topic(self) -> Mapping[str, TopicError]:
        """The first error of each topic."""
        return {of.topic: of for of in reversed((self, *self.beside))}


class HinderedError(TopicError):
    """A registry has failed for long at what one table needs, though it answers others.

    That may pass: where nothing goes on without the table, it is tried again like a RetryableError.
    """


class RegistryClosedError(TopicError):
    """What a registry says of a subject and may say of all: that the login may not use it, or that it is read-only."""


class LoginError(OperatorError):
    """A server refuses who logs in. Where the login was good before, its secret may have been rotated."""


class UnloggedError(OperatorError):
    """A server writes no log for now, so that what is written meanwhile never comes.

    That it was so is noted beside the position before a run ends with it: the next start reads the tables again.
    """


class TooLargeError(OperatorError):
    """The broker does not take this record; no part of its transaction was committed."""

    def __init__(self, message: str, *, hint: str, topic: str, key: bytes, value: bytes) -> None:
        super().__init__(message, hint=hint)
        self.topic = topic
        self.key = key
        self.value = value


class FencedError(OperatorError):
    """Another copy of the connector goes on in place of this one: nothing is lost, and nothing is to be repaired."""

    exit_code = 3


FINAL: Final = frozenset({ConfigError.exit_code, FencedError.exit_code, VerdictError.exit_code})
"""Exit codes that ask for no restart: it would end as this one has, or take over from a copy that is well."""


class RetryableError(CdcError):
    """A fault that passes: connection cut, broker away, producer fenced by a restart of our own.

    Before a connector has run once, it is shown at once and not retried, unless `at_start` says that waiting usually
    helps even then.
    """

    def __init__(self, message: str, *, hint: str | None = None, at_start: bool = False) -> None:
        super().__init__(message, hint=hint)
        self.at_start = at_start


class ChangedError(RetryableError):
    """Something that the position relies on has changed while the log was followed.

    The next session begins at once: its start compares all of it, and says what follows.
    """


class NewTablesError(ChangedError):
    """Tables that a pattern brings have come while the log was followed. The next session takes them up.

    ``tables`` are their names, as ``schema.table``. Where they are what it cannot begin with, it begins without them.
    """

    def __init__(self, message: str, tables: Collection[str]) -> None:
        super().__init__(message)
        self.tables = frozenset(tables)


class UnreadableError(RetryableError):
    """A server fails to read its own log. That may pass; where it does not, `--after-gap` takes it for a gap."""


class BugError(CdcError):
    """The code met something that should be impossible; the position is safe, the bug is ours."""


class ProtocolError(BugError):
    """Bytes do not follow the protocol; ``offset`` is where in the message reading stopped."""

    def __init__(self, offset: int, what: str) -> None:
        super().__init__(f"{what} at byte {offset}", hint="please report this with the server's version")
        self.offset = offset
        self.what = what


def raise_first(refusals: Iterable[CdcError]) -> None:
    """Raise the first error, if there is one: a run stops at what `cdc check` lists, so that the two never disagree."""
    for refusal in refusals:
        raise refusal


def raise_of_topics(refusals: Iterable[OperatorError]) -> None:
    """Raise what all tables depend on, if there is such an error; else all that concerns topics of tables, as one."""
    refused = list(refusals)
    of_tables = [refusal for refusal in refused if isinstance(refusal, TopicError)]
    raise_first(refusal for refusal in refused if not isinstance(refusal, TopicError))
    for refusal in of_tables[:1]:
        refusal.beside = of_tables[1:]
        raise refusal
