"""push_telemetry (api key 72), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
PushTelemetryRequest 0 flexible=0+
  client_instance_id: uuid 0+
  subscription_id: int32 0+
  terminating: bool 0+
  compression_type: int8 0+
  metrics: bytes 0+
"""

RESPONSE = """
PushTelemetryResponse 0 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
"""
