"""expire_delegation_token (api key 40), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
ExpireDelegationTokenRequest 1-2 flexible=2+
  hmac: bytes 1+
  expiry_time_period: ms64 1+
"""

RESPONSE = """
ExpireDelegationTokenResponse 1-2 flexible=2+
  error_code: error 1+
  expiry_timestamp: time 1+
  throttle_time: ms32 1+
"""
