"""renew_delegation_token (api key 39), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
RenewDelegationTokenRequest 1-2 flexible=2+
  hmac: bytes 1+
  renew_period: ms64 1+
"""

RESPONSE = """
RenewDelegationTokenResponse 1-2 flexible=2+
  error_code: error 1+
  expiry_timestamp: time 1+
  throttle_time: ms32 1+
"""
