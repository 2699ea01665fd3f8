"""produce (api key 0), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
ProduceRequest 3-13 flexible=9+
  transactional_id: string 3+ null@3+
  acks: int16 3+
  timeout: ms32 3+
  topic_data: []TopicProduceData 3+
    name: string 3-12
    topic_id: uuid 13+
    partition_data: []PartitionProduceData 3+
      index: int32 3+
      records: records 3+ null@3+
"""

RESPONSE = """
ProduceResponse 3-13 flexible=9+
  responses: []TopicProduceResponse 3+
    name: string 3-12
    topic_id: uuid 13+
    partition_responses: []PartitionProduceResponse 3+
      index: int32 3+
      error_code: error 3+
      base_offset: int64 3+
      log_append_time: time 3+ null@3+
      log_start_offset: int64 5+ =-1
      record_errors: []BatchIndexAndErrorMessage 8+
        batch_index: int32 8+
        batch_index_error_message: string 8+ null@8+
      error_message: string 8+ null@8+
      current_leader: LeaderIdAndEpoch 10+ tag0@10+
        leader_id: int32 10+ =-1
        leader_epoch: int32 10+ =-1
  throttle_time: ms32 3+
  node_endpoints: []NodeEndpoint 10+ tag0@10+
    node_id: int32 10+
    host: string 10+
    port: int32 10+
    rack: string 10+ null@10+
"""
