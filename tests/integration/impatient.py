"""`cdc` to which a MySQL server that says nothing is gone after seconds, where it is a minute.

python -m tests.integration.impatient run CONNECTOR.yaml
"""

from __future__ import annotations

from cdc.cli.main import main
from connectors.mysql import session
from connectors.mysql.replication import dump_stream

SILENT_S = 3.0
HEARTBEAT_S = 1

if __name__ == "__main__":
    dump_stream.SILENT_S, dump_stream.HEARTBEAT_S = SILENT_S, HEARTBEAT_S  # type: ignore[misc]
    session.STATEMENT_TIMEOUT_S = session.CONNECT_TIMEOUT_S = 3  # type: ignore[misc]
    session.connect.__kwdefaults__["read_timeout_s"] = SILENT_S
    main()
