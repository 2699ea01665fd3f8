"""offset_commit (api key 8), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
OffsetCommitRequest 2-10 flexible=8+
  group_id: string 2+
  generation_id_or_member_epoch: int32 2+ =-1
  member_id: string 2+
  retention_time: ms64 2-4 =-1
  group_instance_id: string 7+ null@7+
  topics: []OffsetCommitRequestTopic 2+
    name: string 2-9
    topic_id: uuid 10+
    partitions: []OffsetCommitRequestPartition 2+
      partition_index: int32 2+
      committed_offset: int64 2+
      committed_leader_epoch: int32 6+ =-1
      committed_metadata: string 2+ null@2+
"""

RESPONSE = """
OffsetCommitResponse 2-10 flexible=8+
  throttle_time: ms32 3+
  topics: []OffsetCommitResponseTopic 2+
    name: string 2-9
    topic_id: uuid 10+
    partitions: []OffsetCommitResponsePartition 2+
      partition_index: int32 2+
      error_code: error 2+
"""
