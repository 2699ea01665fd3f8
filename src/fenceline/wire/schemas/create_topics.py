"""create_topics (api key 19), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
CreateTopicsRequest 2-7 flexible=5+
  topics: []CreatableTopic 2+
    name: string 2+
    num_partitions: int32 2+
    replication_factor: int16 2+
    assignments: []CreatableReplicaAssignment 2+
      partition_index: int32 2+
      broker_ids: []int32 2+
    configs: []CreatableTopicConfig 2+
      name: string 2+
      value: string 2+ null@2+
  timeout: ms32 2+ =60000
  validate_only: bool 2+
"""

RESPONSE = """
CreateTopicsResponse 2-7 flexible=5+
  throttle_time: ms32 2+
  topics: []CreatableTopicResult 2+
    name: string 2+
    topic_id: uuid 7+
    error_code: error 2+
    error_message: string 2+ null@2+
    topic_config_error_code: int16 5+ tag0@5+
    num_partitions: int32 5+ =-1
    replication_factor: int16 5+ =-1
    configs: []CreatableTopicConfigs 5+ null@5+
      name: string 5+
      value: string 5+ null@5+
      read_only: bool 5+
      config_source: int8 5+ =-1
      is_sensitive: bool 5+
"""
