"""offset_fetch (api key 9), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
OffsetFetchRequest 1-10 flexible=6+
  group_id: string 1-7
  topics: []OffsetFetchRequestTopic 1-7 null@2-7
    name: string 1-7
    partition_indexes: []int32 1-7
  groups: []OffsetFetchRequestGroup 8+
    group_id: string 8+
    member_id: string 9+ null@9+
    member_epoch: int32 9+ =-1
    topics: []OffsetFetchRequestTopics 8+ null@8+
      name: string 8-9
      topic_id: uuid 10+
      partition_indexes: []int32 8+
  require_stable: bool 7+
"""

RESPONSE = """
OffsetFetchResponse 1-10 flexible=6+
  throttle_time: ms32 3+
  topics: []OffsetFetchResponseTopic 1-7
    name: string 1-7
    partitions: []OffsetFetchResponsePartition 1-7
      partition_index: int32 1-7
      committed_offset: int64 1-7
      committed_leader_epoch: int32 5-7 =-1
      metadata: string 1-7 null@1-7
      error_code: error 1-7
  error_code: error 2-7
  groups: []OffsetFetchResponseGroup 8+
    group_id: string 8+
    topics: []OffsetFetchResponseTopics 8+
      name: string 8-9
      topic_id: uuid 10+
      partitions: []OffsetFetchResponsePartitions 8+
        partition_index: int32 8+
        committed_offset: int64 8+
        committed_leader_epoch: int32 8+ =-1
        metadata: string 8+ null@8+
        error_code: error 8+
    error_code: error 8+
"""
