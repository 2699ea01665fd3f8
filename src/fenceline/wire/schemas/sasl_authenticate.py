"""sasl_authenticate (api key 36), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
SaslAuthenticateRequest 0-2 flexible=2+
  auth_bytes: bytes 0+
"""

RESPONSE = """
SaslAuthenticateResponse 0-2 flexible=2+
  error_code: error 0+
  error_message: string 0+ null@0+
  auth_bytes: bytes 0+
  session_lifetime: ms64 1+
"""
