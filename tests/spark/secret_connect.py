"""A driver under Spark Connect whose password is a variable of a config provider: Spark Connect itself writes the
options of every query to the event log.

    python -m tests.spark.secret_connect FOLDER PROPERTIES TOPIC
"""

from __future__ import annotations

import sys
from pathlib import Path

from fenceline.config.properties import read_properties
from tests.spark.sessions import CONNECT, session

PROVIDER = "org.apache.kafka.common.config.provider.FileConfigProvider"


def main(folder: Path, properties: Path, topic: str) -> None:
    (folder / "events").mkdir()
    spark = session(
        CONNECT,
        folder,
        spark__eventLog__enabled="true",
        spark__eventLog__compress="false",
        spark__eventLog__dir=(folder / "events").as_uri(),
        spark__log__level="INFO",
    )
    client = {
        **read_properties(properties),
        "sasl.password": f"${{file:{properties}:sasl.password}}",
        "config.providers": "file",
        "config.providers.file.class": PROVIDER,
        "config.providers.file.param.allowed.paths": str(properties),
    }
    kafka = {f"kafka.{key}": value for key, value in client.items()}
    rows = spark.read.format("fenceline").options(**kafka, subscribe=topic).load()
    rows.explain(True)
    assert rows.count() > 0
    rows.select("value").write.format("fenceline").options(**kafka, topic=f"{topic}-copy").mode("append").save()
    stream = spark.readStream.format("fenceline").options(**kafka, subscribe=topic).load()
    writer = stream.writeStream.format("noop").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start()
    query.awaitTermination()
    print(query.lastProgress)
    spark.stop()
    print("--- done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
