"""get_telemetry_subscriptions (api key 71), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
GetTelemetrySubscriptionsRequest 0 flexible=0+
  client_instance_id: uuid 0+
"""

RESPONSE = """
GetTelemetrySubscriptionsResponse 0 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
  client_instance_id: uuid 0+
  subscription_id: int32 0+
  accepted_compression_types: []int8 0+
  push_interval: ms32 0+
  telemetry_max_bytes: int32 0+
  delta_temporality: bool 0+
  requested_metrics: []string 0+
"""
