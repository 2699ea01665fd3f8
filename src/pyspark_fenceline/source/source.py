"""`format("fenceline")`: the data source that Spark discovers, with its readers and writers.

Owns the check of options when `load()` is called, before any query starts. Spark searches modules named `pyspark_*` for
a `DefaultSource` (`pyspark.md S16`), in every session: importing this must stay cheap, so Arrow and the client are
imported when a query needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSource

from fenceline.errors import OperatorError
from fenceline.ids import LOSSES_TOPIC
from pyspark_fenceline.source.options import (
    ReadOptions,
    check_common_options,
    lost_record_columns,
    read_options,
    wants_losses,
    write_options,
)

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType

    from pyspark_fenceline.source.policy import LossPolicy
    from pyspark_fenceline.source.tasks import ReadPlan


class FencelineDataSource(DataSource):
    """Topics of Fenceline or any Kafka (2.1 or newer) as DataFrames, batch and streaming, read and write."""

    _is_planned = False
    """Whether this process plans a read."""

    @classmethod
    def name(cls) -> str:
        return "fenceline"

    def __getstate__(self) -> dict[str, Any]:
        """Spark sends tasks the source that planned them, of which they use the name only: without passwords."""
        return {"options": {}} if self._is_planned else dict(self.__dict__)

    def schema(self) -> StructType:
        from pyspark_fenceline.common.schema import spark_schema

        if wants_losses(self.options):
            from pyspark_fenceline.source import losses_table

            return losses_table.SCHEMA
        if (lost := lost_record_columns(self.options)) is not None:
            from pyspark_fenceline.source.lost_records import lost_receipt_reader

            with_headers, with_epochs = lost
            schema = spark_schema(include_headers=with_headers, include_leader_epoch=with_epochs)
            lost_receipt_reader(self.options, schema)  # a wrong option fails here, before any query
            return schema
        common = check_common_options(self.options)
        return spark_schema(
            include_headers=common.include_headers,
            include_leader_epoch=common.include_leader_epoch,
            include_retractions=common.retractions is not None,
        )

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_fenceline.source.batch import FencelineReader, FilteringReader

        self._is_planned = True
        if wants_losses(self.options):
            from pyspark_fenceline.source.losses_table import losses_reader

            return losses_reader(self.options)
        if (lost := lost_record_columns(self.options)) is not None:
            from pyspark_fenceline.common.schema import check_schema
            from pyspark_fenceline.source.lost_records import lost_receipt_reader

            check_schema(schema, include_headers=lost[0], include_leader_epoch=lost[1])
            return lost_receipt_reader(self.options, schema)
        options = read_options(self.options, streaming=False)
        kind = FilteringReader if options.filter_pushdown else FencelineReader
        return kind(options, _plan(options, schema, options.policy.for_one_batch()))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        from pyspark_fenceline.source.planner_process import end_with_spark
        from pyspark_fenceline.source.stream import FencelineStreamReader, RefusedStreamReader

        end_with_spark()
        self._is_planned = True
        try:
            if wants_losses(self.options):
                raise OperatorError(
                    "Option 'losses' is for batch reads only",
                    f"Use spark.read, or stream the topic {LOSSES_TOPIC}: its values are the receipts as JSON.",
                )
            if lost_record_columns(self.options) is not None:
                raise OperatorError("Option 'lostReceipt' is for batch reads only", "Use spark.read.")
            options = read_options(self.options, streaming=True)
            return FencelineStreamReader(options, _plan(options, schema, options.policy))
        except OperatorError as error:
            return RefusedStreamReader(error)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from pyspark_fenceline.source.topic_sink import TopicWriter, refuse_overwrite

        if overwrite:
            refuse_overwrite()
        return TopicWriter(write_options(self.options), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from pyspark_fenceline.source.topic_sink import TopicStreamWriter

        # Complete mode writes every row of the result again, as Spark's Kafka sink does.
        return TopicStreamWriter(write_options(self.options), schema)


def _plan(options: ReadOptions, schema: StructType, policy: LossPolicy) -> ReadPlan:
    from pyspark_fenceline.common.schema import check_schema
    from pyspark_fenceline.common.task_login import of_tasks
    from pyspark_fenceline.source.tasks import ReadPlan

    check_schema(
        schema,
        include_headers=options.include_headers,
        include_leader_epoch=options.include_leader_epoch,
        include_retractions=options.retractions is not None,
    )
    return ReadPlan(of_tasks(options.client), schema, policy, options.retries, options.timeline_directory)
