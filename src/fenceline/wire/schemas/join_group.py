"""join_group (api key 11), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
JoinGroupRequest 0-9 flexible=6+
  group_id: string 0+
  session_timeout: ms32 0+
  rebalance_timeout: ms32 1+ =-1
  member_id: string 0+
  group_instance_id: string 5+ null@5+
  protocol_type: string 0+
  protocols: []JoinGroupRequestProtocol 0+
    name: string 0+
    metadata: bytes 0+
  reason: string 8+ null@8+
"""

RESPONSE = """
JoinGroupResponse 0-9 flexible=6+
  throttle_time: ms32 2+
  error_code: error 0+
  generation_id: int32 0+ =-1
  protocol_type: string 7+ null@7+
  protocol_name: string 0+ null@7+
  leader: string 0+
  skip_assignment: bool 9+
  member_id: string 0+
  members: []JoinGroupResponseMember 0+
    member_id: string 0+
    group_instance_id: string 5+ null@5+
    metadata: bytes 0+
"""
