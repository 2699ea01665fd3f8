"""broker_heartbeat (api key 63), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
BrokerHeartbeatRequest 0-2 flexible=0+
  broker_id: int32 0+
  broker_epoch: int64 0+ =-1
  current_metadata_offset: int64 0+
  want_fence: bool 0+
  want_shut_down: bool 0+
  offline_log_dirs: []uuid 1+ tag0@1+
  cordoned_log_dirs: []uuid 2+ tag1@2+ null@2+
"""

RESPONSE = """
BrokerHeartbeatResponse 0-2 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
  is_caught_up: bool 0+
  is_fenced: bool 0+ =true
  should_shut_down: bool 0+
"""
