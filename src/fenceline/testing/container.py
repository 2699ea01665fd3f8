"""`KafkaContainer` without containers: the methods of that class of testcontainers, on a broker of the laboratory.

Owns the translation of images' environment variables into properties. A suite changes one import:

    from fenceline.testing.container import KafkaContainer

What needs a container (another command, copied files, networks of containers) raises OperatorError.
"""

from __future__ import annotations

from collections.abc import Mapping
from os import PathLike
from types import TracebackType
from typing import Any, Final, NoReturn, Self

from fenceline.errors import OperatorError
from fenceline.testing.lab.cluster import LabCluster

_PREFIX: Final = "KAFKA_"
_HOST: Final = "127.0.0.1"
_OF_THE_IMAGE: Final = (
    "KAFKA_LISTENERS",
    "KAFKA_ADVERTISED_LISTENERS",
    "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP",
    "KAFKA_INTER_BROKER_LISTENER_NAME",
    "KAFKA_BROKER_ID",
    "KAFKA_NODE_ID",
    "KAFKA_PROCESS_ROLES",
    "KAFKA_CONTROLLER_QUORUM_VOTERS",
    "KAFKA_CONTROLLER_LISTENER_NAMES",
    "KAFKA_ZOOKEEPER_CONNECT",
    "KAFKA_LOG_DIRS",
    "KAFKA_HEAP_OPTS",
    "KAFKA_JVM_PERFORMANCE_OPTS",
    "KAFKA_OPTS",
)
"""Variables about the container itself; the broker here has addresses and folders of its own."""


class KafkaContainer:
    """One broker. `image` and the other arguments are accepted and have no effect; `cluster` has the faults and
    situations of the laboratory."""

    def __init__(self, image: str = "fenceline", port: int = 9093, **kwargs: Any) -> None:
        self.image = image
        self.port = port
        self.env: dict[str, str] = {}
        self._fixed_port = 0
        self._cluster: LabCluster | None = None

    @property
    def cluster(self) -> LabCluster:
        """The running broker. Raises OperatorError before `start`."""
        if self._cluster is None:
            raise OperatorError("The container was not started", "Call start(), or use it in a `with` block.")
        return self._cluster

    # --- before the start -----------------------------------------------------------------------------------------

    def with_env(self, key: str, value: object) -> Self:
        """`KAFKA_A_B_C` sets the property a.b.c, as in the images of Kafka; other variables have no effect."""
        self.env[key] = str(value)
        return self

    def with_envs(self, **variables: object) -> Self:
        for key, value in variables.items():
            self.with_env(key, value)
        return self

    def with_kraft(self) -> Self:
        """The broker always has its own quorum."""
        return self

    def with_cluster_id(self, cluster_id: str) -> Self:
        """No effect: the cluster has an id of its own."""
        return self

    def with_name(self, name: str) -> Self:
        """No effect."""
        return self

    def with_kwargs(self, **kwargs: Any) -> Self:
        """No effect."""
        return self

    def with_exposed_ports(self, *ports: int | str) -> Self:
        """No effect: the port of the broker is reachable."""
        return self

    def with_bind_ports(self, container: int | str, host: int | str | None = None) -> Self:
        """Serve clients on this port of the machine."""
        if host is not None:
            self._fixed_port = int(host)
        return self

    def maybe_emulate_amd64(self) -> Self:
        return self

    def waiting_for(self, strategy: object) -> Self:
        """No effect: `start` returns when the broker answers."""
        return self

    def with_command(self, command: object) -> NoReturn:
        """Raises OperatorError."""
        self._refuse("another command")

    def with_volume_mapping(self, host: str | PathLike[str], container: str, mode: str = "ro") -> NoReturn:
        """Raises OperatorError."""
        self._refuse("mapped volumes")

    def with_network(self, network: object) -> NoReturn:
        """Raises OperatorError."""
        self._refuse("a network of containers")

    def with_network_aliases(self, *aliases: str) -> NoReturn:
        """Raises OperatorError."""
        self._refuse("a network of containers")

    # --- life -----------------------------------------------------------------------------------------------------

    def start(self, timeout: float = 30) -> Self:
        """Start the broker, and wait until it answers. Raises OperatorError."""
        self._cluster = LabCluster(1, properties=_properties(self.env), port=self._fixed_port).start(wait_s=timeout)
        return self

    def stop(self, force: bool = True, delete_volume: bool = True) -> None:
        """End the broker, and remove its folder."""
        if self._cluster is not None:
            self._cluster.close()
            self._cluster = None

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- the running broker ---------------------------------------------------------------------------------------

    def get_bootstrap_server(self) -> str:
        """`host:port`."""
        return self.cluster.bootstrap_servers

    def get_container_host_ip(self) -> str:
        return _HOST

    def get_exposed_port(self, port: int) -> int:
        """The broker's port, whatever the port of the container."""
        return int(self.cluster.bootstrap_servers.rpartition(":")[2])

    def get_container_id(self) -> str:
        return self.cluster.processes.cluster_id

    def get_logs(self) -> tuple[bytes, bytes]:
        """Standard output (empty) and standard error."""
        return b"", self.cluster.log(1).encode()

    @property
    def status(self) -> str:
        return "not created" if self._cluster is None else self._cluster.processes.status_of(1).state

    def exec(self, command: object) -> NoReturn:
        """Raises OperatorError."""
        self._refuse("commands in a container")

    def get_wrapped_container(self) -> NoReturn:
        """Raises OperatorError."""
        self._refuse("a container")

    def get_docker_client(self) -> NoReturn:
        """Raises OperatorError."""
        self._refuse("a container runtime")

    def _refuse(self, what: str) -> NoReturn:
        raise OperatorError(
            f"{type(self).__name__} of fenceline is a process, and has no {what}",
            "Use `.cluster`: its `admin` creates topics, and `faults` does what commands in the container did.",
        )


def _properties(env: Mapping[str, str]) -> dict[str, str]:
    """Kafka's properties, as the images make them from variables: single underscores are dots, double ones are dashes,
    triple ones underscores."""
    names = {key: key.removeprefix(_PREFIX) for key in env if key.startswith(_PREFIX) and key not in _OF_THE_IMAGE}
    for old, new in (("___", "\0"), ("__", "-"), ("_", "."), ("\0", "_")):
        names = {key: name.replace(old, new) for key, name in names.items()}
    return {name.lower(): env[key] for key, name in names.items()}
