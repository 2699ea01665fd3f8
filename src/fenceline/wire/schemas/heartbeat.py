"""heartbeat (api key 12), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
HeartbeatRequest 0-4 flexible=4+
  group_id: string 0+
  generation_id: int32 0+
  member_id: string 0+
  group_instance_id: string 3+ null@3+
"""

RESPONSE = """
HeartbeatResponse 0-4 flexible=4+
  throttle_time: ms32 1+
  error_code: error 0+
"""
