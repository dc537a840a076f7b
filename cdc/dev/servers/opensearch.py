"""Runs OpenSearch for development and tests, from its jars: one node on loopback, without the security plugin.

The server's jars alone have no network transport: Netty comes as a module, a folder of jars with a descriptor and a
policy. The policy needs two permissions more than the distribution's, or closing Netty fails and the node does not stop
on SIGTERM.
"""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING

from cdc.dev import jars
from cdc.dev.java import console_logging, java
from cdc.dev.servers.process import Launch, Settings, answers

if TYPE_CHECKING:
    from pathlib import Path

_JAVA_OPTIONS = (
    *("-Xms512m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto"),
    *("-Djava.security.manager=allow", "-Djna.nosys=true", "-Dio.netty.allocator.numDirectArenas=0"),
    *("-Dlog4j2.disable.jmx=true", "-Dlog4j.shutdownHookEnabled=false", "-Dopensearch.networkaddress.cache.ttl=60"),
)

_DESCRIPTOR = """\
name=transport-netty4
description=HTTP and transport over Netty
version={version}
opensearch.version={version}
java.version=11
classname=org.opensearch.transport.Netty4Plugin
"""

_POLICY = """\
grant codeBase "${codebase.netty-common}" {
  permission java.io.FilePermission "/proc/sys/net/core/somaxconn", "read";
  permission java.lang.RuntimePermission "getClassLoader";
  permission java.lang.RuntimePermission "setContextClassLoader";
  permission java.net.SocketPermission "*", "accept,connect";
};
grant codeBase "${codebase.netty-transport}" {
  permission java.net.SocketPermission "*", "accept,connect";
};
"""


def prepare(folder: Path) -> Launch:
    """Fetch the jars and lay out the server's home on the first call."""
    class_path = jars.class_path("opensearch", jars.OPENSEARCH)
    settings = Settings(folder)
    port, transport_port = settings.port("port"), settings.port("transport_port")
    home, scratch = folder / "home", folder / "tmp"
    scratch.mkdir(exist_ok=True)
    _lay_out_module(home / "modules" / "transport-netty4")
    _lay_out_configuration(home / "config", data=folder / "data", port=port, transport_port=transport_port)
    options = (
        *_JAVA_OPTIONS,
        *(f"-Djava.io.tmpdir={scratch}", f"-Dopensearch.path.home={home}", f"-Dopensearch.path.conf={home / 'config'}"),
    )
    return Launch(
        argv=(str(java()), *options, "-cp", class_path, "org.opensearch.bootstrap.OpenSearch"),
        ready=lambda _pid: answers(port, "/_cluster/health?wait_for_status=yellow&timeout=1s"),
        url=f"http://127.0.0.1:{port}",
        refuses_root=True,
    )


def _lay_out_module(module: Path) -> None:
    if module.exists():
        return
    unfinished = module.parent.parent / "module.new"  # not beside the module: each folder there is taken for one
    shutil.rmtree(unfinished, ignore_errors=True)
    unfinished.mkdir(parents=True)
    for jar in jars.fetch("opensearch-transport", jars.OPENSEARCH_TRANSPORT):
        shutil.copy(jar, unfinished)
    version = jars.OPENSEARCH[0].rpartition(":")[2]
    (unfinished / "plugin-descriptor.properties").write_text(_DESCRIPTOR.format(version=version))
    (unfinished / "plugin-security.policy").write_text(_POLICY)
    module.parent.mkdir(exist_ok=True)
    unfinished.rename(module)


def _lay_out_configuration(configuration: Path, *, data: Path, port: int, transport_port: int) -> None:
    configuration.mkdir(exist_ok=True)
    options = {
        "cluster.name": "cdc-dev",
        "discovery.type": "single-node",
        "network.host": "127.0.0.1",
        "http.port": port,
        "transport.port": transport_port,
        "path.data": str(data),
        "path.logs": str(data.parent),
        "action.auto_create_index": False,  # a sink must make its indexes itself
        "cluster.routing.allocation.disk.threshold_enabled": False,  # a laptop's disk is always nearly full
    }
    (configuration / "opensearch.yml").write_text(json.dumps(options, indent=1))  # JSON is YAML
    (configuration / "log4j2.properties").write_text(console_logging("INFO", logger="%c{1.}"))
