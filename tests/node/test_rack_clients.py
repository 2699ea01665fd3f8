"""A real client with `client.rack` reads from the replica in its rack (KIP-392), on three processes."""

from __future__ import annotations

import json
import time
from pathlib import Path

from confluent_kafka import Consumer

from fenceline.node.api.fetch.fetching import RACK_AWARE_SELECTOR
from fenceline.testing.mixed_cluster import COMBINED, MixedCluster
from tests.node.replicated_topics import bootstrap, create, in_sync, leader, write


def test_librdkafka_reads_from_its_rack(tmp_path: Path) -> None:
    settings = {"replica.selector.class": RACK_AWARE_SELECTOR}
    with MixedCluster(tmp_path, [COMBINED] * 3, late=(1, 2, 3), settings=settings) as cluster:
        for node in cluster.nodes:
            cluster.settings["broker.rack"] = f"rack-{node.node_id}"
            node.start()
        for node in cluster.nodes:
            node.wait_ready()
        cluster.wait_complete()
        create(cluster, "near")
        in_sync(cluster, "near", {1, 2, 3})
        leads = leader(cluster, "near").node_id
        near = leads % 3 + 1
        values = [f"value {number}" for number in range(200)]
        write(cluster, "near", values[:100], acks="all")
        read_from: set[int] = set()

        def note(text: str) -> None:
            partitions = json.loads(text)["topics"].get("near", {}).get("partitions", {})
            if "0" in partitions:
                read_from.add(partitions["0"]["broker"])

        consumer = Consumer(
            {
                "bootstrap.servers": ",".join(bootstrap(cluster)),
                "group.id": "near",
                "auto.offset.reset": "earliest",
                "client.rack": f"rack-{near}",
                "statistics.interval.ms": 50,
                "stats_cb": note,
            }
        )
        try:
            consumer.subscribe(["near"])
            seen: list[str] = []
            deadline = time.monotonic() + 120
            is_written = False
            while len(seen) < 200 or near not in read_from:
                assert time.monotonic() < deadline, (len(seen), read_from)
                message = consumer.poll(0.1)
                if message is not None and message.error() is None:
                    seen.append((message.value() or b"").decode())
                if near in read_from and not is_written:
                    # From here on records have to come from the follower.
                    write(cluster, "near", values[100:], acks="all")
                    is_written = True
            assert seen == values
        finally:
            consumer.close()
