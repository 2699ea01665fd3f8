"""`python -m benchmarks [NAME...]`: runs all or the given benchmarks, and writes `benchmarks/results/`."""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback

from benchmarks.harness import Figures, write_results

NAMES = {
    "startup": "spawn to the first Metadata answer, memory at rest",
    "produce": "ProducerPerformance and confluent-kafka, 100 B and 1 KB",
    "consume": "confluent-kafka and ConsumerPerformance, 100 B and 1 KB, ten at once, three replicas (BENCH_ROWS)",
    "latency": "one synchronous record through librdkafka, alone and with a concurrent cold reader",
    "client": "Fenceline's client: poll_arrow and send_arrow",
    "snapshots": "metadata snapshots of 100,000 and 1,000,000 partitions: generating, loading, memory",
    "quorum": "three combined nodes: start, memory, failover, topics; a controller that joins late",
    "replication": "three nodes, replication factor 3: produce, failover, catching up, idle (BENCH_ROWS)",
    "truncation": "an unclean election under a polling consumer: time until it reports the truncation",
    "groups": "10,000 idle groups; failover of a coordinator with 1,000,000 offsets (BENCH_ROWS)",
    "large_group": "one group of the consumer protocol with 1,000 members: rebalances, heartbeats",
    "simulation": "simulated time per real time, three controllers and brokers",
    "laboratory": "fixtures until the first record, many clusters, situations, seeds of a simulated application",
    "compaction": "the log cleaner on a dirty log of one partition",
    "partitions": "10,000 and 99,000 partitions, killed nodes and leaders; 500 topics one by one; an idle node",
    "scale": "what growth costs: four sizes of each curve (BENCH_ROWS), drawn by benchmarks.scale_page",
    "transactions": "transactional produce, small transactions, 1,000 producers",
    "transactional_ids": "100,000 idle transactional ids: memory; failover of their coordinator",
    "tls": "TLS with client certificates: 1 KB with confluent-kafka, handshakes",
    "authorization": "a Produce request with 10,000 ACLs, and without an authorizer",
    "quotas": "one synchronous record, alone and beside a client that is held at its quota",
    "verify": "fenceline verify against Kafka's DumpLogSegments",
    "spark": "batch and streaming against Spark's own connector (BENCH_ROWS)",
    "spark_batches": "micro-batches against Spark's connector, 1,000 partitions, two workers, 100 M rows (BENCH_ROWS)",
    "spark_tables": "Delta tables: sink, audit, backfill, end-to-end latency (BENCH_ROWS)",
    "spark_topics": "topic to topic: exactly once, and at least once beside Spark's connector",
    "spark_repair": "repair of 300,000 stale rows in a table of 5 M after an unclean election",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"{__doc__}\n\nBENCH_BASE=DIRECTORY: compare with another checkout instead of Apache Kafka.",
        epilog="\n".join(f"  {name:<12} {text}" for name, text in NAMES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="names from the list below (default: all)")
    parser.add_argument("--repeats", type=int, default=3, help="measured runs of each figure (default 3)")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in NAMES]
    if unknown:
        parser.error(f"unknown benchmark {', '.join(unknown)}; known: {', '.join(NAMES)}")
    failed = []
    for name in options.names or NAMES:
        print(f"{name}: {NAMES[name]}", flush=True)
        figures = Figures(name)
        try:
            importlib.import_module(f"benchmarks.{name}").run(figures, options.repeats)
        except Exception:
            traceback.print_exc()
            failed.append(name)
        if figures.series:
            print(f"written to {write_results({name: figures})}", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
