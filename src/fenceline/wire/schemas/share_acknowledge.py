"""share_acknowledge (api key 79), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
ShareAcknowledgeRequest 1-2 flexible=1+
  group_id: string 1+ null@1+
  member_id: string 1+ null@1+
  share_session_epoch: int32 1+
  is_renew_ack: bool 2+
  topics: []AcknowledgeTopic 1+
    topic_id: uuid 1+
    partitions: []AcknowledgePartition 1+
      partition_index: int32 1+
      acknowledgement_batches: []AcknowledgementBatch 1+
        first_offset: int64 1+
        last_offset: int64 1+
        acknowledge_types: []int8 1+
"""

RESPONSE = """
ShareAcknowledgeResponse 1-2 flexible=1+
  throttle_time: ms32 1+
  error_code: error 1+
  error_message: string 1+ null@1+
  acquisition_lock_timeout: ms32 2+
  responses: []ShareAcknowledgeTopicResponse 1+
    topic_id: uuid 1+
    partitions: []PartitionData 1+
      partition_index: int32 1+
      error_code: error 1+
      error_message: string 1+ null@1+
      current_leader: LeaderIdAndEpoch 1+
        leader_id: int32 1+
        leader_epoch: int32 1+
  node_endpoints: []NodeEndpoint 1+
    node_id: int32 1+
    host: string 1+
    port: int32 1+
    rack: string 1+ null@1+
"""
