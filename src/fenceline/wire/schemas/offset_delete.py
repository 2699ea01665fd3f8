"""offset_delete (api key 47), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
OffsetDeleteRequest 0
  group_id: string 0+
  topics: []OffsetDeleteRequestTopic 0+
    name: string 0+
    partitions: []OffsetDeleteRequestPartition 0+
      partition_index: int32 0+
"""

RESPONSE = """
OffsetDeleteResponse 0
  error_code: error 0+
  throttle_time: ms32 0+
  topics: []OffsetDeleteResponseTopic 0+
    name: string 0+
    partitions: []OffsetDeleteResponsePartition 0+
      partition_index: int32 0+
      error_code: error 0+
"""
