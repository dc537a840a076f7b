"""Shows a process on the address that its file gives: metrics and health.

What makes metrics is imported when somebody wants to see them: other processes start sooner and are smaller.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cdc.config import registry
from cdc.config.config import ApplyConfig, ConnectorConfig
from cdc.config.views import ViewsConfig
from cdc.fleet.fleet_config import FleetConfig
from cdc.fleet.report import METRICS_SOCKET
from cdc.fleet.seams import Fleet
from cdc.model.errors import CdcError
from cdc.model.meter import NO_METER, Meter
from cdc.telemetry.json_log import Place

if TYPE_CHECKING:
    from cdc.telemetry.apply_meter import ApplyMeter
    from cdc.telemetry.fleet_meter import FleetMeter

log = logging.getLogger("cdc")


@dataclass(slots=True)
class Followed:
    """Holds the file that a connector goes by: another one once a session has begun with what was read again."""

    config: ConnectorConfig


@contextmanager
def monitored_connector(followed: Followed, environment: Mapping[str, str]) -> Iterator[Meter]:
    """Give the meter of a connector, shown while the block runs; one that forgets if nobody wants to see it.

    It is shown at the address that its file gives, and to the member of a fleet whose child it is, which says so in the
    environment. Its server is looked at where the connector follows it now.

    Raises OperatorError, before anything else is done, for an address that cannot be listened on.
    """
    config = followed.config
    address, of_member = config.metrics.address, environment.get(METRICS_SOCKET)
    places: list[tuple[str, int] | Path] = [Path(of_member)] if of_member else []
    places += [address] if address is not None else []
    if not places:
        yield NO_METER
        return
    from cdc.telemetry.connector_meter import ConnectorMeter  # noqa: PLC0415 - at the top of this file
    from cdc.telemetry.server import MetricsServer  # noqa: PLC0415 - as above
    from cdc.telemetry.server_watch import ServerWatch  # noqa: PLC0415 - as above

    meter, standing = ConnectorMeter(config), registry.standing(config)
    with ExitStack() as shown:
        for place in places:
            shown.enter_context(MetricsServer(place, meter.figures.registry, meter))
        shown.enter_context(ServerWatch(lambda: standing(followed.config, meter.committed_state()), meter.looked))
        if address is not None:
            log.info("%s: metrics and health at http://%s", config.name, config.metrics.listen)
        yield meter


@contextmanager
def monitored_member(config: FleetConfig, member: str, children: Path, fleet: Fleet) -> Iterator[FleetMeter | None]:
    """Give the meter of a fleet's member, shown while the block runs; None if fleet.yaml gives no address.

    Raises OperatorError, before anything else is done, for an address that cannot be listened on.
    """
    address = config.metrics.address
    if address is None:
        yield None
        return
    from cdc.telemetry.fleet_meter import FleetMeter  # noqa: PLC0415 - at the top of this file
    from cdc.telemetry.server import MetricsServer  # noqa: PLC0415 - as above
    from cdc.telemetry.server_watch import ServerWatch  # noqa: PLC0415 - as above

    meter = FleetMeter(config.fleet, member, children)
    with (
        MetricsServer(address, meter.figures.registry, meter, others=meter.children),
        ServerWatch(fleet.members, meter.answered),
    ):
        log.info("member %s: metrics and health at http://%s", member, config.metrics.listen)
        yield meter


@contextmanager
def monitored_job(config: ApplyConfig | ViewsConfig, place: Place, tell: Callable[[str], None]) -> Iterator[ApplyMeter]:
    """Give the meter of an apply job, or of a view job, shown while the block runs if its file gives an address.

    Raises OperatorError, before anything else is done, for an address that cannot be listened on.
    """
    from cdc.telemetry.apply_meter import ApplyMeter  # noqa: PLC0415 - at the top of this file
    from cdc.telemetry.server import MetricsServer  # noqa: PLC0415 - as above

    meter, address = ApplyMeter(config, place), config.metrics.address
    with nullcontext() if address is None else MetricsServer(address, meter.figures.registry, meter):
        if address is not None:
            tell(f"metrics and health at http://{config.metrics.listen}")
        try:
            yield meter
        except CdcError as exc:
            meter.fails(exc)
            raise
