"""share_group_heartbeat (api key 76), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
ShareGroupHeartbeatRequest 1 flexible=1+
  group_id: string 1+
  member_id: string 1+
  member_epoch: int32 1+
  rack_id: string 1+ null@1+
  subscribed_topic_names: []string 1+ null@1+
"""

RESPONSE = """
ShareGroupHeartbeatResponse 1 flexible=1+
  throttle_time: ms32 1+
  error_code: error 1+
  error_message: string 1+ null@1+
  member_id: string 1+ null@1+
  member_epoch: int32 1+
  heartbeat_interval: ms32 1+
  assignment: Assignment 1+ null@1+
    topic_partitions: []TopicPartitions 1+
      topic_id: uuid 1+
      partitions: []int32 1+
"""
