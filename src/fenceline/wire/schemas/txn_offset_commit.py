"""txn_offset_commit (api key 28), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
TxnOffsetCommitRequest 0-5 flexible=3+
  transactional_id: string 0+
  group_id: string 0+
  producer_id: int64 0+
  producer_epoch: int16 0+
  generation_id: int32 3+ =-1
  member_id: string 3+
  group_instance_id: string 3+ null@3+
  topics: []TxnOffsetCommitRequestTopic 0+
    name: string 0+
    partitions: []TxnOffsetCommitRequestPartition 0+
      partition_index: int32 0+
      committed_offset: int64 0+
      committed_leader_epoch: int32 2+ =-1
      committed_metadata: string 0+ null@0+
"""

RESPONSE = """
TxnOffsetCommitResponse 0-5 flexible=3+
  throttle_time: ms32 0+
  topics: []TxnOffsetCommitResponseTopic 0+
    name: string 0+
    partitions: []TxnOffsetCommitResponsePartition 0+
      partition_index: int32 0+
      error_code: error 0+
"""
