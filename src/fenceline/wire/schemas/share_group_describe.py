"""share_group_describe (api key 77), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
ShareGroupDescribeRequest 1 flexible=1+
  group_ids: []string 1+
  include_authorized_operations: bool 1+
"""

RESPONSE = """
ShareGroupDescribeResponse 1 flexible=1+
  throttle_time: ms32 1+
  groups: []DescribedGroup 1+
    error_code: error 1+
    error_message: string 1+ null@1+
    group_id: string 1+
    group_state: string 1+
    group_epoch: int32 1+
    assignment_epoch: int32 1+
    assignor_name: string 1+
    members: []Member 1+
      member_id: string 1+
      rack_id: string 1+ null@1+
      member_epoch: int32 1+
      client_id: string 1+
      client_host: string 1+
      subscribed_topic_names: []string 1+
      assignment: Assignment 1+
        topic_partitions: []TopicPartitions 1+
          topic_id: uuid 1+
          topic_name: string 1+
          partitions: []int32 1+
    authorized_operations: int32 1+ =-2147483648
"""
