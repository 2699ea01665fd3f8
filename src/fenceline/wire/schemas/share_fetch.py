"""share_fetch (api key 78), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
ShareFetchRequest 1-2 flexible=1+
  group_id: string 1+ null@1+
  member_id: string 1+ null@1+
  share_session_epoch: int32 1+
  max_wait: ms32 1+
  min_bytes: int32 1+
  max_bytes: int32 1+ =2147483647
  max_records: int32 1+
  batch_size: int32 1+
  share_acquire_mode: int8 2+
  is_renew_ack: bool 2+
  topics: []FetchTopic 1+
    topic_id: uuid 1+
    partitions: []FetchPartition 1+
      partition_index: int32 1+
      acknowledgement_batches: []AcknowledgementBatch 1+
        first_offset: int64 1+
        last_offset: int64 1+
        acknowledge_types: []int8 1+
  forgotten_topics_data: []ForgottenTopic 1+
    topic_id: uuid 1+
    partitions: []int32 1+
"""

RESPONSE = """
ShareFetchResponse 1-2 flexible=1+
  throttle_time: ms32 1+
  error_code: error 1+
  error_message: string 1+ null@1+
  acquisition_lock_timeout: ms32 1+
  responses: []ShareFetchableTopicResponse 1+
    topic_id: uuid 1+
    partitions: []PartitionData 1+
      partition_index: int32 1+
      error_code: error 1+
      error_message: string 1+ null@1+
      acknowledge_error_code: int16 1+
      acknowledge_error_message: string 1+ null@1+
      current_leader: LeaderIdAndEpoch 1+
        leader_id: int32 1+
        leader_epoch: int32 1+
      records: records 1+
      acquired_records: []AcquiredRecords 1+
        first_offset: int64 1+
        last_offset: int64 1+
        delivery_count: int16 1+
  node_endpoints: []NodeEndpoint 1+
    node_id: int32 1+
    host: string 1+
    port: int32 1+
    rack: string 1+ null@1+
"""
