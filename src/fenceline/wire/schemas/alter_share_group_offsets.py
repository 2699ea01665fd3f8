"""alter_share_group_offsets (api key 91), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
AlterShareGroupOffsetsRequest 0 flexible=0+
  group_id: string 0+
  topics: []AlterShareGroupOffsetsRequestTopic 0+
    topic_name: string 0+
    partitions: []AlterShareGroupOffsetsRequestPartition 0+
      partition_index: int32 0+
      start_offset: int64 0+
"""

RESPONSE = """
AlterShareGroupOffsetsResponse 0 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
  error_message: string 0+ null@0+
  responses: []AlterShareGroupOffsetsResponseTopic 0+
    topic_name: string 0+
    topic_id: uuid 0+
    partitions: []AlterShareGroupOffsetsResponsePartition 0+
      partition_index: int32 0+
      error_code: error 0+
      error_message: string 0+ null@0+
"""
