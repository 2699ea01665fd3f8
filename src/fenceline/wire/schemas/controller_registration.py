"""controller_registration (api key 70), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
ControllerRegistrationRequest 0 flexible=0+
  controller_id: int32 0+
  incarnation_id: uuid 0+
  zk_migration_ready: bool 0+
  listeners: []Listener 0+
    name: string 0+
    host: string 0+
    port: uint16 0+
    security_protocol: int16 0+
  features: []Feature 0+
    name: string 0+
    min_supported_version: int16 0+
    max_supported_version: int16 0+
"""

RESPONSE = """
ControllerRegistrationResponse 0 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
  error_message: string 0+ null@0+
"""
