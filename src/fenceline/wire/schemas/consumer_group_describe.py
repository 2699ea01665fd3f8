"""consumer_group_describe (api key 69), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
ConsumerGroupDescribeRequest 0-1 flexible=0+
  group_ids: []string 0+
  include_authorized_operations: bool 0+
"""

RESPONSE = """
ConsumerGroupDescribeResponse 0-1 flexible=0+
  throttle_time: ms32 0+
  groups: []DescribedGroup 0+
    error_code: error 0+
    error_message: string 0+ null@0+
    group_id: string 0+
    group_state: string 0+
    group_epoch: int32 0+
    assignment_epoch: int32 0+
    assignor_name: string 0+
    members: []Member 0+
      member_id: string 0+
      instance_id: string 0+ null@0+
      rack_id: string 0+ null@0+
      member_epoch: int32 0+
      client_id: string 0+
      client_host: string 0+
      subscribed_topic_names: []string 0+
      subscribed_topic_regex: string 0+ null@0+
      assignment: Assignment 0+
        topic_partitions: []TopicPartitions 0+
          topic_id: uuid 0+
          topic_name: string 0+
          partitions: []int32 0+
      target_assignment: Assignment 0+
        topic_partitions: []TopicPartitions 0+
          topic_id: uuid 0+
          topic_name: string 0+
          partitions: []int32 0+
      member_type: int8 1+ =-1
    authorized_operations: int32 0+ =-2147483648
"""
