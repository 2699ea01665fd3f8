"""find_coordinator (api key 10), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
FindCoordinatorRequest 0-6 flexible=3+
  key: string 0-3
  key_type: int8 1+
  coordinator_keys: []string 4+
"""

RESPONSE = """
FindCoordinatorResponse 0-6 flexible=3+
  throttle_time: ms32 1+
  error_code: error 0-3
  error_message: string 1-3 null@1-3
  node_id: int32 0-3
  host: string 0-3
  port: int32 0-3
  coordinators: []Coordinator 4+
    key: string 4+
    node_id: int32 4+
    host: string 4+
    port: int32 4+
    error_code: error 4+
    error_message: string 4+ null@4+
"""
