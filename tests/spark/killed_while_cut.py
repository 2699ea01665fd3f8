"""The victim of `test_killed_while_cut.py`: the query of `killed_steps.py`, which runs until it is requested to end,
and restarts when only one of its processes has died.

Arguments: those of `killed_steps.py`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from tests.spark.kill_plans import DEAD
from tests.spark.killed_steps import MORE, ROWS_A_BATCH
from tests.spark.queries import tracked
from tests.spark.sessions import session

WIDER: Final = "wider"
"""A file that signals that queries have an additional column from now on."""
ENOUGH: Final = "enough"
"""A file that signals that the query may end after it has read everything."""
_LOOK_S: Final = 0.1
_TOO_LATE: Final = "Python worker failed to connect back"
"""Spark waits 10 seconds for a Python process that it has started, which cannot be changed."""


def main(folder: str, bootstrap: str, topic: str, table: str, checkpoint: str, plans_folder: str) -> None:
    from pyspark.errors import StreamingQueryException

    # Imported by name, so that Spark's workers find the class in that module.
    from tests.spark import killed_steps

    # Tasks may fail often: each loses its worker.
    spark = session("local[2,100]", folder, spark__log__level="OFF")
    spark.dataSource.register(killed_steps.KillableDelta)
    orders = Path(plans_folder)
    is_over = False
    while not is_over:
        # Brokers are unavailable for the duration of an election.
        given = {"maxOffsetsPerTrigger": ROWS_A_BATCH, "fetchOffset.numRetries": 1000}
        frame = tracked(spark, bootstrap, topic, **given)
        if (orders / WIDER).exists():
            frame = frame.withColumn(MORE, frame["offset"])
        query = killed_steps.killable(frame, bootstrap, checkpoint, plans_folder).start(table)
        try:
            while not is_over:
                query.awaitTermination(_LOOK_S)
                if (orders / ENOUGH).exists():
                    query.processAllAvailable()
                    query.stop()
                    is_over = True
        except StreamingQueryException as error:
            if not (orders / DEAD).exists() and _TOO_LATE not in str(error):
                raise
            (orders / DEAD).unlink(missing_ok=True)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
