"""describe_groups (api key 15), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
DescribeGroupsRequest 0-6 flexible=5+
  groups: []string 0+
  include_authorized_operations: bool 3+
"""

RESPONSE = """
DescribeGroupsResponse 0-6 flexible=5+
  throttle_time: ms32 1+
  groups: []DescribedGroup 0+
    error_code: error 0+
    error_message: string 6+ null@6+
    group_id: string 0+
    group_state: string 0+
    protocol_type: string 0+
    protocol_data: string 0+
    members: []DescribedGroupMember 0+
      member_id: string 0+
      group_instance_id: string 4+ null@4+
      client_id: string 0+
      client_host: string 0+
      member_metadata: bytes 0+
      member_assignment: bytes 0+
    authorized_operations: int32 3+ =-2147483648
"""
