"""Starting Apache Kafka servers quickly, for tests that start many: their classes come as one file that is only mapped.

Owns that file, beside the jars. It is made once, by a Kafka that starts and stops; a start takes a third of the time.
"""

from __future__ import annotations

import fcntl
import os
from functools import cache
from pathlib import Path

from fenceline.testing.apache_kafka import DEFAULT_JARS, ApacheKafka

_QUICK = ("-XX:TieredStopAtLevel=1", "-XX:-UsePerfData")


def quick_environment(scratch: Path) -> dict[str, str]:
    """The environment of a cluster whose JVMs are not measured; what they unpack goes to `scratch`, which must exist.

    A JVM that does not match the class archive starts without it.
    """
    options = (*_QUICK, f"-XX:SharedArchiveFile={_archive()}", "-Xlog:disable", f"-Djava.io.tmpdir={scratch}")
    return {**os.environ, "JDK_JAVA_OPTIONS": " ".join(options)}


@cache
def _archive() -> Path:
    archive = DEFAULT_JARS / "server.jsa"
    # Workers that come at the same time wait for the one that makes it.
    with archive.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not archive.exists():
            made = archive.with_suffix(".made")
            options = ("-XX:+UseG1GC", *_QUICK, f"-XX:ArchiveClassesAtExit={made}")
            with ApacheKafka(heap="512m", jvm_options=options) as kafka:
                kafka.stop()
            if made.exists():
                made.replace(archive)
    return archive
