"""A schema registry, through confluent-kafka's own client: asked once for each version of a table, never for an event.

What the registry answers is what it says of schemas, so its reasons are shown, shortened; who logs in never is.
https://docs.confluent.io/platform/current/schema-registry/develop/api.html
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING, Final, TypeVar

from cdc.config.findings import Finding, Level
from cdc.config.kafka_config import KafkaConfig
from cdc.config.published.record_format import RegistryConfig
from cdc.formats.meanings import meant_otherwise, swapped
from cdc.formats.reading import PLAIN, Reading, SchemaOf
from cdc.formats.schema_text import name_of
from cdc.model.errors import (
    CdcError,
    ConfigError,
    HinderedError,
    OperatorError,
    RegistryClosedError,
    RetryableError,
    TopicError,
)

if TYPE_CHECKING:
    from confluent_kafka.schema_registry import Schema, SchemaRegistryClient

_T = TypeVar("_T")
_NOT_FOUND: Final = 404
_REFUSED: Final = 409
_INVALID: Final = (400, 413, 422)
_LOGIN: Final = (401, 403)
_ELSEWHERE: Final = range(300, 400)
"""The client follows no redirect: it has a login to lose."""
_NOT_PERMITTED: Final = 42205
"""https://docs.confluent.io/platform/current/schema-registry/develop/api.html: operation not permitted."""
_UNKNOWN: Final = "Unknown Schema Registry Error"
"""So the client's message begins where the answer is not of a registry."""
_ALONE_S: Final = 60.0
"""What hinders one subject for so long, while others can be asked about, is a matter of its table."""
_FRESH_S: Final = 1.0
"""A registry that answered so short a time ago is the same one."""
_SHOWN: Final = 400
"""So many characters of a registry's reason are shown."""


class SchemaRegistry:
    """One registry. It connects to nothing before it is asked."""

    def __init__(self, config: RegistryConfig, key: str = "sink.registry", *, learns: bool = True) -> None:
        """`key` is where its file has it. Raises ConfigError without the client, or for options it does not take.

        Where it does not learn, `register` raises what it would raise, as far as a registry tells beforehand, and
        registers nothing.
        """
        self._config, self._key, self._learns = config, key, learns
        self._client = self._new_client()
        self._given: dict[str, tuple[Schema, int]] = {}
        """The last schema of each subject, and its id, since `forget`."""
        self._refused: dict[str, tuple[str, Callable[[SchemaRegistry], object]]] = {}
        """The schemas that it did not take, by subject, and how it is asked again."""
        self._told = set[tuple[str, str]]()
        """Subjects and texts of those of which it was told that it takes them by now."""
        self._hindered: dict[str, float] = {}
        """The subjects that could not be asked about when that was tried last, and since when."""
        self._looked_at, self._answered_s = 0, 0.0

    def forget(self) -> None:
        """Forget all answers: a registry that was made again has other ids."""
        self._client.__exit__(None, None, None)  # type: ignore[no-untyped-call]
        self._client = self._new_client()
        self._given = {}

    def same(self) -> bool:
        """Whether it still has the ids that it gave: the highest, which a backup may be without, and one in turn."""
        given = sorted(self._given.copy().items(), key=lambda of: of[1][1])  # another thread may register
        self._looked_at += 1
        client = self._new_client()  # which has heard no answer
        looks = {len(given) - 1, self._looked_at % max(len(given) - 1, 1)} if given else set()
        hindered = list[RetryableError]()
        try:
            for at in looks:
                subject, (schema, number) = given[at]
                with suppress(TopicError), _kept(hindered):  # which is found out where its own table needs it
                    there = self._asked(subject, partial(client.get_schema, number))
                    if there is None or name_of(there.schema_str or "") != name_of(schema.schema_str or ""):
                        return False
                    found = self._asked(subject, partial(client.lookup_schema, subject, schema))
                    if found is not None and found.schema_id != number:  # None: it was deleted, its id is readable
                        return False
            if hindered and len(hindered) == len(looks):
                raise hindered[0]
            return True
        finally:
            client.__exit__(None, None, None)  # type: ignore[no-untyped-call]

    def takes(self) -> bool:
        """Whether it would take by now what it has refused: see `cdc.formats.wires.Registry`."""
        for subject, (text, ask) in self._refused.copy().items():
            asking = SchemaRegistry(self._config, self._key, learns=False)
            try:
                ask(asking)
            except TopicError:
                self._told.discard((subject, text))
                continue
            except RetryableError:  # others may be asked about
                continue
            finally:
                asking.forget()
            if (subject, text) not in self._told:  # what it says beforehand may not be what it does
                self._told.add((subject, text))
                return True
        return False

    def register(self, subject: str, text: str, *, type_: str, ours: Sequence[str]) -> int:
        """Return the id of a schema under a subject: see `cdc.formats.wires.Registry`."""
        return self._noted(subject, text, lambda at: at._register(subject, text, type_, ours))  # noqa: SLF001 - its own

    def newest(self, subject: str) -> str | None:
        """Return the text of the newest schema under a subject; None: there is none."""
        return self._noted(subject, "", lambda at: at._newest(subject))  # noqa: SLF001 - its own

    def _noted(self, subject: str, text: str, ask: Callable[[SchemaRegistry], _T]) -> _T:
        """Ask about a subject, and keep in mind what it refuses."""
        self._refused.pop(subject, None)
        try:
            found = self._asked_alone(subject, ask)
        except TopicError:
            self._refused[subject] = (text, ask)
            raise
        self._told.discard((subject, text))
        return found

    def _asked_alone(self, subject: str, ask: Callable[[SchemaRegistry], _T]) -> _T:
        """Ask about a subject, or a schema. Raises HinderedError where it alone cannot be asked about for a while."""
        try:
            found = ask(self)
        except RetryableError as exc:
            since_s = self._hindered.setdefault(subject, time.monotonic())
            if time.monotonic() - since_s < _ALONE_S or not self._answers_others():
                raise
            raise HinderedError(
                f"{exc.message}; it has been so for {_ALONE_S:.0f} s, and the registry answers other questions",
                hint=f"what does the registry's own log say of {subject}? A connector that runs asks again "
                "within ten minutes, or at once: cdc reload CONNECTOR.yaml. Start one that has ended",
                topic=subject,
            ) from exc
        self._hindered.pop(subject, None)
        return found

    def _answers_others(self) -> bool:
        """Whether it names subjects: else it is away, or new, and no table is left out for that."""
        try:
            return bool(self.subjects())
        except RetryableError:
            return False
        except CdcError:  # it does not tell this login of them
            return True

    def _register(self, subject: str, text: str, type_: str, ours: Sequence[str]) -> int:
        from confluent_kafka.schema_registry import Schema  # noqa: PLC0415 - an extra, and slow to load

        schema = Schema(text, type_)
        client = self._client
        if self._given and time.monotonic() - self._answered_s > _FRESH_S and not self.same():
            raise RetryableError(
                f"schema registry at {self._config.url}: its ids are not those that it gave: it was made again, or "
                "restored",
                hint="nothing to do: it learns the schemas again, and tables that have other ids now are read again",
            )
        found = self._asked(subject, lambda: client.lookup_schema(subject, schema))
        if found is not None and found.schema_id is not None:
            return self._note(subject, schema, found.schema_id)
        client.clear_latest_caches()  # type: ignore[no-untyped-call]  # which has what was the newest before
        newest = self._asked(subject, lambda: client.get_latest_version(subject))
        if newest is not None and newest.schema is not None:
            self._refuse_others(
                subject, newest.schema.schema_str or "", newest.schema.schema_type or "AVRO", type_, ours
            )
            self._refuse_swapped(subject, newest.schema.schema_str or "", schema)
            self._refuse_another_meaning(subject, newest.schema.schema_str or "", schema)
        if not self._learns:
            self._refuse_what_it_would(subject, schema, first=newest is None)
            return 0
        number = self._asked(subject, lambda: client.register_schema(subject, schema))
        if number is None:
            raise self._error(subject, f"it has no subject {subject}, and takes none", None)
        return self._note(subject, schema, number)

    def _note(self, subject: str, schema: Schema, told: object) -> int:
        number = self._id(subject, told)
        self._given[subject], self._answered_s = (schema, number), time.monotonic()
        return number

    def _id(self, subject: str, number: object) -> int:
        """Return an id that it has told; what else it may have told must not get into records."""
        if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < 1 << 31:
            raise self._no_registry(subject, "its id of a schema is no number")
        return number

    def _newest(self, subject: str) -> str | None:
        client = self._client
        client.clear_latest_caches()  # type: ignore[no-untyped-call]  # which has what was the newest before
        found = self._asked(subject, lambda: client.get_latest_version(subject))
        return None if found is None or found.schema is None else found.schema.schema_str

    def subjects(self) -> Sequence[str]:
        """Ask for the subjects. Raises OperatorError or RetryableError if the registry cannot be used."""
        client = self._client
        found: object = self._asked("", client.get_subjects) or ()
        if not isinstance(found, (list, tuple)) or not all(isinstance(of, str) for of in found):
            raise self._no_registry("", "its subjects are no list of names")
        return found

    def schema(self, number: int) -> tuple[str, str] | None:
        """Return the type and text of a schema; None: the registry does not know it. Raises as `register`."""
        return self._asked_alone(f"schema {number}", lambda at: at.schema_at_once(number))

    def schema_at_once(self, number: int) -> tuple[str, str] | None:
        """Return the same for a reader of many tables: it asks again for as long as it likes."""
        found = self._asked(f"schema {number}", partial(self._client.get_schema, number))
        return None if found is None else (found.schema_type or "AVRO", found.schema_str or "")

    def _new_client(self) -> SchemaRegistryClient:
        try:
            from confluent_kafka.schema_registry import SchemaRegistryClient  # noqa: PLC0415 - an extra
        except ImportError as exc:
            raise ConfigError(
                f"{self._key}: the registry's client is not installed", hint="pip install 'cdc-toolkit[avro]'"
            ) from exc
        try:
            return SchemaRegistryClient(
                {
                    "max.retries": 0,  # the loop tries again
                    **self._config.options,
                    "url": self._config.url,
                    "timeout": self._config.timeout_s,
                }
            )
        except Exception as exc:  # files, numbers, names: it may be any
            reason = type(exc).__name__
            if not isinstance(exc, (ValueError, TypeError, OSError)):
                raise
        raise ConfigError(
            f"{self._key}.options: the client does not take them: {reason}",
            hint=f"given: {', '.join(sorted(self._config.options)) or 'none'}; by confluent-kafka's names: "
            "basic.auth.user.info, ssl.ca.location, …",
        )

    def _asked(self, what: str, ask: Callable[[], _T]) -> _T | None:
        """Ask; None: it is not there."""
        from confluent_kafka.schema_registry import SchemaRegistryError  # noqa: PLC0415 - an extra

        try:
            return ask()
        except SchemaRegistryError as exc:
            status, code = exc.http_status_code, exc.error_code
            if status == _NOT_FOUND and isinstance(code, int) and code > 0:  # a registry says so with a number
                return None
            if status == _NOT_FOUND or status in _ELSEWHERE:
                raise self._no_registry(what, f"HTTP {status}") from None
            if code == _NOT_PERMITTED:
                raise self._read_only(what, str(exc.error_message or "")) from None
            raise self._error(what, str(exc.error_message or ""), exc.http_status_code) from None  # it names the url
        except (ValueError, TypeError, LookupError, AttributeError) as exc:  # the client could not read it
            raise self._no_registry(what, type(exc).__name__) from exc
        except Exception as exc:  # the HTTP client's own
            if _broken_tls(exc):
                raise OperatorError(
                    f"schema registry at {self._config.url}: its certificate is not trusted, or not of this name",
                    hint=f"{self._key}.options: ssl.ca.location: the file of who has signed it; and {self._key}.url "
                    "has the name that is in it",
                ) from exc
            raise RetryableError(
                f"schema registry at {self._config.url}: {what or 'asking'}: no answer: {type(exc).__name__}",
                hint=f"does it run, and is {self._key}.url its address? Nothing is lost: it is asked again",
            ) from exc

    def _no_registry(self, what: str, why: str) -> RetryableError:
        return RetryableError(
            f"schema registry at {self._config.url}: {what or 'asking'}: its answer is not that of a schema registry: "
            f"{why}",
            hint=f"is {self._key}.url its address, with the path that it wants? A proxy before it may answer, too",
        )

    def _error(self, what: str, reason: str, status: int | None) -> CdcError:
        where = f"schema registry at {self._config.url}"
        reason = _shown(reason)
        refused = partial(TopicError, topic=what)  # of one subject: others may be asked about
        if status in _LOGIN:
            return RegistryClosedError(
                f"{where} refuses the login, or what it asks for: {what or 'its subjects'} (HTTP {status})",
                hint=f"{self._key}.options: basic.auth.user.info: ${{REGISTRY_LOGIN}}, as user:password, of somebody "
                "who may read and register this subject",
                topic=what,
            )
        if status == _REFUSED:
            return refused(
                f"{where}: subject {what} does not take the table's schema; no event is written with it: {reason}",
                hint=f"let the subject take it: its compatibility is at {self._config.url}/config/{what}, or else the "
                f"registry's at {self._config.url}/config; or another format for this table (sink.formats); or, while "
                "no row of it has been written since, change the table back. A connector that runs asks again each "
                "minute, and looks at the table after ten; or at once, and by its file as it is then: "
                "cdc reload CONNECTOR.yaml. Start one that has ended",
            )
        if status in _INVALID:
            return refused(
                f"{where} cannot read the schema for subject {what} (HTTP {status}): {reason}",
                hint="does it take this format? Another one: sink.format; please report it if it should",
            )
        told = [*([] if status in (None, -1) else [f"HTTP {status}"]), *([reason] if reason else [])]
        return RetryableError(f"{where}: {what or 'asking'}: {': '.join(told) or 'it gives no reason'}")

    def _read_only(self, what: str, reason: str = "") -> RegistryClosedError:
        """Say what does not let schemas be registered: mostly a mode, but it has the same number for more."""
        said = f"schema registry at {self._config.url}: {what}: it is read-only: no schema can be registered"
        if reason and "read-only" not in reason.lower():
            said = (
                f"schema registry at {self._config.url}: {what}: it is read-only, or does not take this schema now: "
                f"{_shown(reason)}"
            )
        return RegistryClosedError(
            said,
            hint=f"its mode is at {self._config.url}/mode, the subject's at {self._config.url}/mode/{what}. A "
            "connector that runs asks again each minute; start one that has ended",
            topic=what,
        )

    def _refuse_what_it_would(self, subject: str, schema: Schema, *, first: bool) -> None:
        """Raise OperatorError where the registry says that it would not take a schema.

        It answers by its mode, and by the subject's compatibility. A registry without these questions, or for which
        this login may not ask them, takes the schema as far as anybody knows; whether the login may write, none says.
        """
        client = self._client
        mode = self._if_told(subject, partial(client.get_mode, subject))
        mode = mode or self._if_told(subject, client.get_global_mode)
        if str(mode).startswith("READONLY"):
            raise self._read_only(subject)
        if str(mode) == "IMPORT":
            raise self._read_only(subject, "its mode is IMPORT, in which schemas come with their ids")
        takes = None if first else partial(client.test_compatibility_all_versions, subject, schema)
        if takes is not None and self._if_told(subject, takes) is False:
            raise self._error(subject, "it is not compatible with what the subject has", _REFUSED)

    def _if_told(self, what: str, ask: Callable[[], _T]) -> _T | None:
        try:
            return self._asked(what, ask)
        except CdcError:
            return None

    def _refuse_others(self, subject: str, text: str, type_: str, wanted: str, ours: Sequence[str]) -> None:
        """Raise TopicError if a subject's newest schema is not the connector's."""
        name = name_of(text)
        if type_ == wanted and name in ours:
            return
        raise TopicError(
            f"schema registry at {self._config.url}: subject {subject} has another schema: “{name}” ({type_})",
            hint="whose is it? sink.registry.subjects: topic-record, or another topic_prefix, gives another subject",
            topic=subject,
        )

    def _refuse_swapped(self, subject: str, before: str, now: Schema) -> None:
        """Raise TopicError if a field would stand for another column than before: readers could not tell."""
        for field, column in swapped(now.schema_type or "AVRO", before, now.schema_str or ""):
            raise TopicError(
                f"schema registry at {self._config.url}: subject {subject}: its field {field} is column “{column}”, "
                "and another column wants that name now: readers would take the one for the other: no event is written",
                hint="Avro has no such name: call the other column otherwise, or leave one of them out "
                "(source.columns: exclude), or another format for this table (sink.formats)",
                topic=subject,
            )

    def _refuse_another_meaning(self, subject: str, before: str, now: Schema) -> None:
        """Raise TopicError if bytes would stand for another value than before, unless the subject takes anything."""
        for field, was, means in meant_otherwise(now.schema_type or "AVRO", before, now.schema_str or ""):
            if self._takes_anything(subject):
                return
            raise TopicError(
                f"schema registry at {self._config.url}: subject {subject}: its field {field} is {was}, and would be "
                f"{means}: a reader that has a schema of its own would take the one's bytes for the other's, which the "
                "registry does not see: no event is written",
                hint="change the column back; or, if all readers go by the schema that a record names, let the subject "
                f"take anything (compatibility NONE at {self._config.url}/config/{subject}) until the connector has "
                "started again",
                topic=subject,
            )

    def _takes_anything(self, subject: str) -> bool:
        """Whether the subject's compatibility, or else the registry's, is NONE."""
        client = self._client
        found = self._asked(subject, lambda: client.get_compatibility(subject)) or self._asked(
            subject, client.get_compatibility
        )
        return found == "NONE"


def _shown(reason: str) -> str:
    """Shorten a registry's reason; nothing where it is a page of a proxy's."""
    reason = "" if reason.startswith(_UNKNOWN) else " ".join(reason.split())
    return reason if len(reason) <= _SHOWN else f"{reason[:_SHOWN]}…"


@contextmanager
def _kept(hindered: list[RetryableError]) -> Iterator[None]:
    """Go on where a registry could not be asked, and keep why."""
    try:
        yield
    except RetryableError as exc:
        hindered.append(exc)


def _broken_tls(exc: BaseException | None) -> bool:
    """Whether a certificate was refused, which no waiting changes."""
    while exc is not None and not isinstance(exc, ssl.SSLCertVerificationError):
        exc = exc.__cause__ or exc.__context__
    return exc is not None


def open_registry(sink: KafkaConfig, *, learns: bool = True) -> SchemaRegistry | None:
    """Make the registry of a sink; None: it has none."""
    return None if sink.registry is None else SchemaRegistry(sink.registry, learns=learns)


def open_schemas(config: RegistryConfig) -> SchemaOf:
    """Return what gives the schemas that a job's streams name."""
    return SchemaRegistry(config, "registry").schema_at_once


def check(sink: KafkaConfig) -> list[Finding]:
    """Find out whether a sink's registry answers; nothing is found where it has none."""
    found = open_registry(sink)
    if found is None or sink.registry is None:
        return []
    return [Finding(Level.OK, "registry", f"{sink.registry.url} answers, with {len(found.subjects())} subjects")]


def open_reading(sink: KafkaConfig, *, by_table: bool = False) -> Reading:
    """Make what reads a sink's records back. `by_table`: what it cannot read of one table is to stop no other."""
    found = open_registry(sink)
    if found is None:
        return PLAIN
    return Reading(found.schema if by_table else found.schema_at_once, forget=found.forget)
