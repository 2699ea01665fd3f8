"""`format("fenceline_segments")`: log directories as DataFrames, without a broker. Batch reads only.

Owns the check of options when `load()` is called. Importing this must stay cheap: Spark does it in every session
(`pyspark.md S16`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader

from fenceline.errors import OperatorError
from pyspark_fenceline_segments.options import Mode, segment_options

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
    from pyspark.sql.types import StructType

    from pyspark_fenceline_segments.reading import SegmentPlan


class SegmentsDataSource(DataSource):
    """Segments of Fenceline or Apache Kafka: batches with their checks, records, or findings."""

    @classmethod
    def name(cls) -> str:
        return "fenceline_segments"

    def schema(self) -> StructType:
        from pyspark_fenceline_segments.columns import full_schema

        options = segment_options(self.options)
        return full_schema(options.mode, include_headers=options.include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        from pyspark_fenceline_segments.columns import check_choice
        from pyspark_fenceline_segments.reading import SegmentPlan

        options = segment_options(self.options)
        check_choice(schema, options.mode, include_headers=options.include_headers)
        return SegmentsReader(SegmentPlan(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        raise OperatorError(
            f"format('{self.name()}') does not support streaming reads",
            "Use spark.read, or format('fenceline') for topics of a running cluster.",
        )


class SegmentsReader(DataSourceReader):
    """Lists files on the driver, reads them on the executors."""

    def __init__(self, plan: SegmentPlan) -> None:
        self._plan = plan

    def partitions(self) -> Sequence[InputPartition]:
        from fenceline.log.core.disk import OsDisk
        from fenceline.log.verify.verify import groups_of, size_of_group
        from pyspark_fenceline_segments.planning import files_of, pack, places_of, task_count
        from pyspark_fenceline_segments.reading import FilesPartition, PlacesPartition

        options = self._plan.options
        places = places_of(options)
        if options.mode is Mode.FINDINGS:
            groups = groups_of(places, compare_replicas=options.compare)
            sizes = [size_of_group(OsDisk(), group) for group in groups]
            own = [PlacesPartition([], places.reports)] if places.reports else []
            return [*own, *(PlacesPartition(p, []) for p in pack(groups, sizes, task_count(options, sizes)))]
        files = files_of(places.found)
        sizes = [file.size_bytes for file in files]
        return [FilesPartition(packed) for packed in pack(files, sizes, task_count(options, sizes))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        from pyspark_fenceline_segments.reading import read_task

        return read_task(self._plan, partition)
