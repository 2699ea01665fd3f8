"""`python -m benchmarks [NAME...]`: run all benchmarks or those named, write `benchmarks/results/`."""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback

from benchmarks.harness import Figures, write_results

NAMES = {
    "startup": "spawn to the first Metadata answer, memory at rest",
    "produce": "ProducerPerformance and confluent-kafka, 100 B and 1 KB",
    "consume": "confluent-kafka and ConsumerPerformance, 100 B",
    "latency": "one synchronous record through librdkafka, quiet and beside a cold reader",
    "client": "our own client: poll_arrow and send_arrow",
    "snapshots": "100,000 and 1,000,000 partitions: snapshot generated and loaded, memory of the image",
    "quorum": "three combined nodes: start, memory, failover, topics; a controller that joins late",
    "replication": "three nodes, replication factor 3: produce, failover, catching up, at rest (BENCH_ROWS)",
    "truncation": "an unclean election under a polling consumer, until it is told",
    "groups": "10,000 idle groups, a coordinator of 1,000,000 offsets that is lost (BENCH_ROWS)",
    "large_group": "one group of the consumer protocol with 1,000 members: sharing out, heartbeats",
    "simulation": "simulated time over real time, three controllers with a broker each",
    "compaction": "a dirty log of one partition, by the node's cleaner",
    "partitions": "10,000 partitions, 500 topics one by one, an idle node",
    "verify": "fenceline verify over segments, beside Kafka's DumpLogSegments",
    "spark": "batch and stream against Spark's own connector (BENCH_ROWS)",
    "spark_tables": "tables kept equal to the log: sink, audit, backfill, end to end (BENCH_ROWS)",
    "spark_repair": "300,000 rows of a table of 5 M that an unclean election has made stale",
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks",
        description=f"{__doc__}\n\nBENCH_BASE=FOLDER: beside nodes of another checkout instead of Apache Kafka.",
        epilog="\n".join(f"  {name:<12} {text}" for name, text in NAMES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "names", nargs="*", metavar="NAME", help="one or more of the names below; all when none is given"
    )
    parser.add_argument("--repeats", type=int, default=3, help="counted runs of each figure (default 3)")
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
