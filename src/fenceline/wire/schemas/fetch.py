"""fetch (api key 1), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
FetchRequest 4-18 flexible=12+
  cluster_id: string 12+ tag0@12+ null@12+
  replica_id: int32 4-14 =-1
  replica_state: ReplicaState 15+ tag1@15+
    replica_id: int32 15+ =-1
    replica_epoch: int64 15+ =-1
  max_wait: ms32 4+
  min_bytes: int32 4+
  max_bytes: int32 4+ =2147483647
  isolation_level: int8 4+
  session_id: int32 7+
  session_epoch: int32 7+ =-1
  topics: []FetchTopic 4+
    topic: string 4-12
    topic_id: uuid 13+
    partitions: []FetchPartition 4+
      partition: int32 4+
      current_leader_epoch: int32 9+ =-1
      fetch_offset: int64 4+
      last_fetched_epoch: int32 12+ =-1
      log_start_offset: int64 5+ =-1
      partition_max_bytes: int32 4+
      replica_directory_id: uuid 17+ tag0@17+
      high_watermark: int64 18+ tag1@18+ =9223372036854775807
  forgotten_topics_data: []ForgottenTopic 7+
    topic: string 7-12
    topic_id: uuid 13+
    partitions: []int32 7+
  rack_id: string 11+
"""

RESPONSE = """
FetchResponse 4-18 flexible=12+
  throttle_time: ms32 4+
  error_code: error 7+
  session_id: int32 7+
  responses: []FetchableTopicResponse 4+
    topic: string 4-12
    topic_id: uuid 13+
    partitions: []PartitionData 4+
      partition_index: int32 4+
      error_code: error 4+
      high_watermark: int64 4+
      last_stable_offset: int64 4+ =-1
      log_start_offset: int64 5+ =-1
      diverging_epoch: EpochEndOffset 12+ tag0@12+
        epoch: int32 12+ =-1
        end_offset: int64 12+ =-1
      current_leader: LeaderIdAndEpoch 12+ tag1@12+
        leader_id: int32 12+ =-1
        leader_epoch: int32 12+ =-1
      snapshot_id: SnapshotId 12+ tag2@12+
        end_offset: int64 12+ =-1
        epoch: int32 12+ =-1
      aborted_transactions: []AbortedTransaction 4+ null@4+
        producer_id: int64 4+
        first_offset: int64 4+
      preferred_read_replica: int32 11+ =-1
      records: records 4+ null@4+
  node_endpoints: []NodeEndpoint 16+ tag0@16+
    node_id: int32 16+
    host: string 16+
    port: int32 16+
    rack: string 16+ null@16+
"""
