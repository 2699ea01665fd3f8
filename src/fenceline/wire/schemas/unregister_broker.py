"""unregister_broker (api key 64), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
UnregisterBrokerRequest 0 flexible=0+
  broker_id: int32 0+
"""

RESPONSE = """
UnregisterBrokerResponse 0 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
  error_message: string 0+ null@0+
"""
