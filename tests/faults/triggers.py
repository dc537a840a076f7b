"""PostgreSQL, MySQL and MariaDB by triggers under the soak: the same servers and writers, and no word of their logs.

Tables whose columns change, or that are emptied where no trigger tells of it, are read again: what was written to them
until then is not told as events. So a transaction on `evolving` need not have all of its own.
"""

from __future__ import annotations

import time
from typing import Any, ClassVar, Final

from pymysql.constants import CLIENT

from cdc.config.config import ConnectorConfig
from cdc.config.kafka_config import KafkaConfig
from cdc.config.source_config import SourceConfig
from cdc.dev.servers.mysqld import DATABASE
from cdc.model.state import Phase, State
from connectors.triggers import log_end
from tests.faults.connector import NAME
from tests.faults.mysql import Mysql, MysqlWriter
from tests.faults.origin import Deck
from tests.faults.postgres import Postgres, PostgresWriter
from tests.faults.stage import Stage
from tests.faults.workload import TABLES, Kind, Writer

_NO_STATE: Final = State(connector=NAME, identity={}, phase=Phase.STREAM, epoch=1)


def _uncounted(writer: Writer) -> bool:
    """Change rows of a table that may be read again at any time."""
    writer.evolve()
    return False


def _altered(writer: Writer) -> bool:
    writer.change_columns()
    return False


KINDS: Final[dict[str, Kind]] = {"evolve": (5, _uncounted), "change columns": (0.4, _altered)}


def _end(url: str, tables: list[str]) -> int:
    source = SourceConfig(type="triggers", url=url, tables=tuple(tables))
    sink = KafkaConfig(bootstrap_servers="none", topic_prefix="none")
    return log_end.end(ConnectorConfig(name=NAME, source=source, sink=sink), _NO_STATE)


class TriggersPostgresWriter(PostgresWriter):
    kinds: ClassVar[dict[str, Kind]] = {**PostgresWriter.kinds, **KINDS}
    read_again: ClassVar[frozenset[str]] = frozenset({"evolving"})


class TriggersPostgres(Postgres):
    writer = TriggersPostgresWriter

    def captured(self) -> dict[str, Any]:
        return {"type": "triggers", "tables": [f"public.{table}" for table in TABLES]}

    def log_end(self) -> int:
        return _end(self.url, self.captured()["tables"])

    def held(self, connector: str) -> int | None:
        """Return nothing: no slot is held."""
        return None

    def end_readers(self, connector: str) -> None:
        self._sql(f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'cdc {connector}'")

    @property
    def faults(self) -> Deck:
        return {"triggers switched off": (3, self.switched_off)}

    def switched_off(self, stage: Stage) -> str:
        """As somebody does who loads a table: what is written meanwhile is told by nobody, and read again."""
        for how in ("DISABLE", "ENABLE"):
            self._sql(f"ALTER TABLE evolving {how} TRIGGER USER")
            time.sleep(stage.between(0, 2))
        return ""


def _emptied(writer: Writer) -> bool:
    writer.truncate()
    return False


def _small(writer: Writer) -> bool:
    writer.small()
    return False


class TriggersMysqlWriter(MysqlWriter):
    """No trigger tells of TRUNCATE: `small` is read again, too. Nor does it matter what the binlog is told.

    Tables are altered less often than elsewhere: triggers are made again each time, and a snapshot that is to end must
    have read a table in between, also on a busy machine.
    """

    kinds: ClassVar[dict[str, Kind]] = {
        **{name: kind for name, kind in MysqlWriter.kinds.items() if name != "hostile"},
        **KINDS,
        "change columns": (0.05, _altered),
        "truncate": (0.05, _emptied),
        "small": (4, _small),
    }
    read_again: ClassVar[frozenset[str]] = frozenset({"evolving", "small"})
    client_flags: ClassVar = CLIENT.FOUND_ROWS
    """A trigger is called for each row that an UPDATE has found, also where nothing of it changes."""


class TriggersMysql(Mysql):
    """Either of the two, by triggers."""

    writer = TriggersMysqlWriter

    def start(self) -> None:
        super().start()
        self._sql("SET GLOBAL log_bin_trust_function_creators = ON")

    @property
    def proxied_url(self) -> str:
        is_new = self._user is None
        url = super().proxied_url
        if is_new and self._user is not None:
            for right in ("ALL ON `cdc\\_%`.*", "PROCESS ON *.*", f"TRIGGER ON `{DATABASE}`.*"):
                self._sql(f"GRANT {right} TO '{self._user.name}'@'%'")
        return url

    def captured(self) -> dict[str, Any]:
        return {"type": "triggers", "tables": [f"{DATABASE}.{table}" for table in TABLES]}

    def log_end(self) -> int:
        return _end(self.url, self.captured()["tables"])

    def end_readers(self, connector: str) -> None:
        self._kill("command = 'Query' OR command = 'Sleep'")

    @property
    def faults(self) -> Deck:
        return {"trigger dropped": (3, self.dropped)}

    def dropped(self, stage: Stage) -> str:
        """It is made again, and the table is read again."""
        del stage
        named = "SELECT TRIGGER_NAME FROM information_schema.TRIGGERS WHERE EVENT_OBJECT_TABLE = 'evolving'"
        names = sorted(str(name) for (name,) in self._sql(named))
        if not names:
            return "not reached"
        self._sql(f"DROP TRIGGER IF EXISTS `{names[0]}`")
        return ""
