"""Kafka's command line tools and clients in one JVM, one after the other: a call costs milliseconds, not a JVM's start.

Owns the JVM. A tool runs as its script would run it: what it prints on either way is kept up to its first exit, whose
code is the tool's; what it does from then on a real process would no longer have done. One call at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from py4j.java_gateway import (  # type: ignore[import-untyped]
    CallbackServerParameters,
    GatewayParameters,
    JavaGateway,
    launch_gateway,
)
from py4j.protocol import Py4JError, Py4JJavaError  # type: ignore[import-untyped]

from fenceline.local_cluster import reaper
from fenceline.testing.apache_kafka import DEFAULT_JARS, QUICK_START

TOOLS: Final = MappingProxyType(
    {
        "acls": "org.apache.kafka.tools.AclCommand",
        "broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
        "cluster": "org.apache.kafka.tools.ClusterTool",
        "configs": "kafka.admin.ConfigCommand",
        "consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
        "delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
        "dump-log": "org.apache.kafka.tools.DumpLogSegments",
        "features": "org.apache.kafka.tools.FeatureCommand",
        "groups": "org.apache.kafka.tools.GroupsCommand",
        "get-offsets": "org.apache.kafka.tools.GetOffsetShell",
        "leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
        "log-dirs": "org.apache.kafka.tools.LogDirsCommand",
        "metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
        "reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
        "storage": "kafka.tools.StorageTool",
        "topics": "org.apache.kafka.tools.TopicCommand",
    }
)
"""The class behind each script of Kafka's `bin` folder."""


class Told(NamedTuple):
    """What a call left behind."""

    code: int
    printed: str


class _Exit:
    """Stands in for the end of the process: notes the first code and what was printed before, ends the call."""

    class Java:
        implements: Final = ["org.apache.kafka.common.utils.Exit$Procedure"]

    def __init__(self, printed: Any) -> None:
        self._printed = printed
        self.first: Told | None = None

    def execute(self, code: int, message: str | None) -> None:
        if self.first is None:
            self.first = Told(code, self._printed.toString())
        raise SystemError(f"exit with {code}")


class ToolJvm:
    """Use as a context manager."""

    def __init__(self, *options: str) -> None:
        """`options`: of the JVM."""
        self._options = options
        self._lock = threading.Lock()

    def __enter__(self) -> ToolJvm:
        port, self._process = launch_gateway(
            classpath=str(DEFAULT_JARS / "server" / "*"),
            javaopts=["-Xmx512m", *QUICK_START, *self._options],
            die_on_exit=True,
            return_proc=True,
        )
        reaper.watch_process(self._process.pid)
        self._gateway = JavaGateway(
            gateway_parameters=GatewayParameters(port=port, auto_convert=True),
            callback_server_parameters=CallbackServerParameters(port=0, daemonize=True, daemonize_connections=True),
        )
        callbacks = self._gateway.get_callback_server()
        client = self._gateway.java_gateway_server
        client.resetCallbackClient(client.getCallbackClient().getAddress(), callbacks.get_listening_port())
        jvm = self._gateway.jvm
        # Its words about a missing binding are no tool's.
        jvm.org.slf4j.LoggerFactory.getILoggerFactory()
        self._printed = jvm.java.io.ByteArrayOutputStream()
        stream = jvm.java.io.PrintStream(self._printed, True)
        jvm.java.lang.System.setOut(stream)
        jvm.java.lang.System.setErr(stream)
        return self

    def __exit__(self, *_: object) -> None:
        self._gateway.shutdown()
        self._process.kill()
        self._process.wait()
        reaper.forget_process(self._process.pid)

    def run(self, name: str, *arguments: str) -> Told:
        """A tool by the name of its script, `kafka-` left out."""
        with self._lock:
            main: Any = self._gateway.jvm
            for part in TOOLS[name].split("."):
                main = getattr(main, part)
            given = self._gateway.new_array(self._gateway.jvm.java.lang.String, len(arguments))
            for index, argument in enumerate(arguments):
                given[index] = argument
            self._printed.reset()
            ending = _Exit(self._printed)
            exits = self._gateway.jvm.org.apache.kafka.common.utils.Exit
            exits.setExitProcedure(ending)
            exits.setHaltProcedure(ending)
            try:
                main.main(given)
            except Py4JJavaError as error:
                if ending.first is None:
                    return Told(1, f"{self._printed.toString()}{error.java_exception.toString()}\n")
            except Py4JError:
                # The end of a call comes back so, and the end of the JVM (argparse4j's, when it is asked what it does
                # not know): that one has noted no code.
                if ending.first is None:
                    raise
            return ending.first or Told(0, self._printed.toString())

    def round_trip(self, properties: Mapping[str, str], topic: str, value: bytes) -> bytes:
        """A record written to partition 0 by Kafka's producer, read back by its consumer. Raises Py4JJavaError."""
        jvm = self._gateway.jvm
        given = jvm.java.util.Properties()
        for key, text in properties.items():
            given.put(key, text)
        for role, suffix in (("serializer", "Serializer"), ("deserializer", "Deserializer")):
            for part in ("key", "value"):
                given.put(f"{part}.{role}", f"org.apache.kafka.common.serialization.ByteArray{suffix}")
        clients = jvm.org.apache.kafka.clients
        producer = clients.producer.KafkaProducer(given)
        try:
            record = clients.producer.ProducerRecord(topic, jvm.java.lang.Integer(0), None, value)
            offset = producer.send(record).get().offset()
        finally:
            producer.close(jvm.java.time.Duration.ZERO)
        consumer = clients.consumer.KafkaConsumer(given)
        try:
            partition = jvm.org.apache.kafka.common.TopicPartition(topic, 0)
            consumer.assign([partition])
            consumer.seek(partition, offset)
            return bytes(consumer.poll(jvm.java.time.Duration.ofSeconds(60)).iterator().next().value())
        finally:
            consumer.close()
