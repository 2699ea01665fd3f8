"""list_offsets (api key 2), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
ListOffsetsRequest 1-11 flexible=6+
  replica_id: int32 1+
  isolation_level: int8 2+
  topics: []ListOffsetsTopic 1+
    name: string 1+
    partitions: []ListOffsetsPartition 1+
      partition_index: int32 1+
      current_leader_epoch: int32 4+ =-1
      timestamp: int64 1+
  timeout: ms32 10+
"""

RESPONSE = """
ListOffsetsResponse 1-11 flexible=6+
  throttle_time: ms32 2+
  topics: []ListOffsetsTopicResponse 1+
    name: string 1+
    partitions: []ListOffsetsPartitionResponse 1+
      partition_index: int32 1+
      error_code: error 1+
      timestamp: int64 1+ =-1
      offset: int64 1+ =-1
      leader_epoch: int32 4+ =-1
"""
