"""consumer_group_heartbeat (api key 68), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
ConsumerGroupHeartbeatRequest 0-1 flexible=0+
  group_id: string 0+
  member_id: string 0+
  member_epoch: int32 0+
  instance_id: string 0+ null@0+
  rack_id: string 0+ null@0+
  rebalance_timeout: ms32 0+ =-1
  subscribed_topic_names: []string 0+ null@0+
  subscribed_topic_regex: string 1+ null@1+
  server_assignor: string 0+ null@0+
  topic_partitions: []TopicPartitions 0+ null@0+
    topic_id: uuid 0+
    partitions: []int32 0+
"""

RESPONSE = """
ConsumerGroupHeartbeatResponse 0-1 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
  error_message: string 0+ null@0+
  member_id: string 0+ null@0+
  member_epoch: int32 0+
  heartbeat_interval: ms32 0+
  assignment: Assignment 0+ null@0+
    topic_partitions: []TopicPartitions 0+
      topic_id: uuid 0+
      partitions: []int32 0+
"""
