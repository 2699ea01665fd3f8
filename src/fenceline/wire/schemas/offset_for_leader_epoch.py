"""offset_for_leader_epoch (api key 23), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
OffsetForLeaderEpochRequest 2-4 flexible=4+
  replica_id: int32 3+ =-2
  topics: []OffsetForLeaderTopic 2+
    topic: string 2+
    partitions: []OffsetForLeaderPartition 2+
      partition: int32 2+
      current_leader_epoch: int32 2+ =-1
      leader_epoch: int32 2+
"""

RESPONSE = """
OffsetForLeaderEpochResponse 2-4 flexible=4+
  throttle_time: ms32 2+
  topics: []OffsetForLeaderTopicResult 2+
    topic: string 2+
    partitions: []EpochEndOffset 2+
      error_code: error 2+
      partition: int32 2+
      leader_epoch: int32 2+ =-1
      end_offset: int64 2+ =-1
"""
