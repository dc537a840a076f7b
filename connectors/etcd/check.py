"""Looks at a cluster for `cdc check`, `cdc status` and `cdc token`: every precondition at once."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace

from cdc.config.config import ConnectorConfig
from cdc.config.findings import Checked, Finding, Level, probed, refused
from cdc.model.change import Table
from cdc.model.errors import CdcError
from cdc.model.state import Phase, State
from connectors.etcd.address import Endpoint, address, weakness
from connectors.etcd.gateway import Gateway, refuse_version
from connectors.etcd.place import Place, refusals
from connectors.etcd.tables import Captured, captured, differences


def check(config: ConnectorConfig, state: State | None, *, known: bool = True) -> Checked:
    """Look at the cluster as the connector's user; `known` means nothing here, for nothing is held in a cluster."""
    del known
    return _Check(config, state).run()


class _Check:
    """Is one look: it holds what the probes have in common."""

    def __init__(self, config: ConnectorConfig, state: State | None) -> None:
        self._state = state
        self._address = address(config.source.url)
        self._captured = captured(config.source.prefixes)
        self._clusters: dict[str, str] = {}
        """The id of the cluster that each endpoint belongs to."""

    def run(self) -> Checked:
        try:
            gateway = Gateway(self._address)
        except CdcError as exc:
            return Checked((refused("cluster", exc),))
        with closing(gateway):
            members = [finding for each in self._address.endpoints for finding in self._member(each)]
            if not self._clusters:
                return Checked(tuple(members))
            findings = [
                *members,
                *probed("cluster", self._cluster),
                *(finding for one in self._captured for finding in self._table(gateway, one)),
                *probed("position", lambda: self._position(gateway)),
            ]
        shown: tuple[Table, ...] = tuple(one.table for one in self._captured)
        return Checked(tuple(findings), shown, {"cluster": next(iter(self._clusters.values()))})

    def _member(self, endpoint: Endpoint) -> Iterator[Finding]:
        """Ask one endpoint alone; where one is away and another answers, a run starts."""
        alone = Gateway(replace(self._address, endpoints=(endpoint,)))
        about = f"etcd at {endpoint}"
        with closing(alone):
            try:
                version = alone.version()
                refusal = next(refuse_version(version), None)
                self._clusters[str(endpoint)] = alone.now(self._captured[0].prefix).cluster
            except CdcError as exc:
                several = len(self._address.endpoints) > 1
                yield replace(refused(about, exc), level=Level.WARNING if several else Level.ERROR)
                return
        yield refused(about, refusal) if refusal is not None else Finding(Level.OK, about, f"version {version}")

    def _cluster(self) -> Iterator[Finding]:
        if len(set(self._clusters.values())) > 1:
            yield Finding(
                Level.ERROR, "cluster",
                "the endpoints of source.url belong to different clusters: "
                + ", ".join(f"{where} to {cluster}" for where, cluster in self._clusters.items()),
                "source.url: name the members of one cluster",
            )  # fmt: skip
        if (weak := weakness(self._address)) is not None:
            yield Finding(Level.WARNING, "encryption", weak, "source.url: …?ssl_mode=verify_identity")

    def _table(self, gateway: Gateway, one: Captured) -> list[Finding]:
        about, of = f"table {one.table.qualified}", "text" if one.is_text else "bytes"

        def probe() -> Iterator[Finding]:
            count = gateway.page(one.prefix, revision=0, limit=1).count
            yield Finding(Level.OK, about, f"{count} keys, whose values are {of}")

        return probed(about, probe)

    def _position(self, gateway: Gateway) -> Iterator[Finding]:
        state = self._state
        if state is None or state.phase is Phase.CREATING:
            return
        gaps = refusals(gateway, Place.of(state.offset), self._captured, state.carried.values())
        found = [refused("position", gap) for gap in gaps]
        yield from found or [
            Finding(Level.OK, "position", f"the cluster has its history from revision {state.offset['revision']} on")
        ]
        for name, reason in differences(state.carried, self._captured).items():
            yield Finding(Level.WARNING, f"table {name}", f"{reason}: its rows are read again")


def standing(config: ConnectorConfig, state: State | None) -> dict[str, object]:
    """Describe the cluster now; `lag_bytes` is known where there is none."""
    with closing(Gateway(address(config.source.url))) as gateway:
        header = gateway.now(captured(config.source.prefixes)[0].prefix)
    read = int(state.offset["revision"]) if state is not None and "revision" in state.offset else None
    return {
        "log_end": str(header.revision),
        "log_end_number": header.revision + 1,
        "lag_bytes": 0 if read is not None and read >= header.revision else None,
        "reading": None,
        "owner": None,
        "clock_ms": time.time_ns() // 1_000_000,
        "revisions_behind": None if read is None else max(0, header.revision - read),
    }


def end(config: ConnectorConfig, state: State) -> int:
    """Return a commit position behind all that was committed before the call, which is reached at once."""
    del state
    with closing(Gateway(address(config.source.url))) as gateway:
        return gateway.now(captured(config.source.prefixes)[0].prefix).revision + 1
