"""sync_group (api key 14), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
SyncGroupRequest 0-5 flexible=4+
  group_id: string 0+
  generation_id: int32 0+
  member_id: string 0+
  group_instance_id: string 3+ null@3+
  protocol_type: string 5+ null@5+
  protocol_name: string 5+ null@5+
  assignments: []SyncGroupRequestAssignment 0+
    member_id: string 0+
    assignment: bytes 0+
"""

RESPONSE = """
SyncGroupResponse 0-5 flexible=4+
  throttle_time: ms32 1+
  error_code: error 0+
  protocol_type: string 5+ null@5+
  protocol_name: string 5+ null@5+
  assignment: bytes 0+
"""
