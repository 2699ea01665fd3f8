"""delete_records (api key 21), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
DeleteRecordsRequest 0-2 flexible=2+
  topics: []DeleteRecordsTopic 0+
    name: string 0+
    partitions: []DeleteRecordsPartition 0+
      partition_index: int32 0+
      offset: int64 0+
  timeout: ms32 0+
"""

RESPONSE = """
DeleteRecordsResponse 0-2 flexible=2+
  throttle_time: ms32 0+
  topics: []DeleteRecordsTopicResult 0+
    name: string 0+
    partitions: []DeleteRecordsPartitionResult 0+
      partition_index: int32 0+
      low_watermark: int64 0+
      error_code: error 0+
"""
