"""describe_topic_partitions (api key 75), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
DescribeTopicPartitionsRequest 0 flexible=0+
  topics: []TopicRequest 0+
    name: string 0+
  response_partition_limit: int32 0+ =2000
  cursor: Cursor 0+ null@0+
    topic_name: string 0+
    partition_index: int32 0+
"""

RESPONSE = """
DescribeTopicPartitionsResponse 0 flexible=0+
  throttle_time: ms32 0+
  topics: []DescribeTopicPartitionsResponseTopic 0+
    error_code: error 0+
    name: string 0+ null@0+
    topic_id: uuid 0+
    is_internal: bool 0+
    partitions: []DescribeTopicPartitionsResponsePartition 0+
      error_code: error 0+
      partition_index: int32 0+
      leader_id: int32 0+
      leader_epoch: int32 0+ =-1
      replica_nodes: []int32 0+
      isr_nodes: []int32 0+
      eligible_leader_replicas: []int32 0+ null@0+
      last_known_elr: []int32 0+ null@0+
      offline_replicas: []int32 0+
    topic_authorized_operations: int32 0+ =-2147483648
  next_cursor: Cursor 0+ null@0+
    topic_name: string 0+
    partition_index: int32 0+
"""
