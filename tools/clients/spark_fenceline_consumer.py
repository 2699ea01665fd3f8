"""The same query as `spark_consumer.py` on Fenceline's own source: the name of the format is the only difference."""

from spark_consumer import run

run("fenceline")
