"""leave_group (api key 13), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
LeaveGroupRequest 0-5 flexible=4+
  group_id: string 0+
  member_id: string 0-2
  members: []MemberIdentity 3+
    member_id: string 3+
    group_instance_id: string 3+ null@3+
    reason: string 5+ null@5+
"""

RESPONSE = """
LeaveGroupResponse 0-5 flexible=4+
  throttle_time: ms32 1+
  error_code: error 0+
  members: []MemberResponse 3+
    member_id: string 3+
    group_instance_id: string 3+ null@3+
    error_code: error 3+
"""
