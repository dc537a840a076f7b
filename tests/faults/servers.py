"""The database and Kafka of the soak's own, the connector's ways to them through proxies, everybody else's direct."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Self

from cdc.dev.servers import kafka
from cdc.dev.servers.process import Server
from tests.faults.origin import Origin
from tests.faults.proxy import Proxy


class Servers:
    """As a context manager it starts them and stops them."""

    def __init__(self, folder: Path, origin: Origin) -> None:
        self.origin = origin
        self.kafka_proxy = Proxy(kafka=True)
        self._folder = folder
        self.kafka = Server("kafka", folder / "kafka", partial(kafka.prepare, advertised_port=self.kafka_proxy.port))

    def __enter__(self) -> Self:
        try:
            self.origin.start()
            self.kafka.start()
        except BaseException:
            self.__exit__()
            raise
        self.kafka_proxy.lead_to(kafka.proxied_port(self._folder / "kafka"))
        return self

    def __exit__(self, *_: object) -> None:
        self.kafka_proxy.close()
        self.origin.close()
        self.kafka.resume()
        self.kafka.stop(timeout_s=5)

    @property
    def proxied_kafka(self) -> str:
        return f"127.0.0.1:{self.kafka_proxy.port}"
