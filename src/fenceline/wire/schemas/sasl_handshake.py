"""sasl_handshake (api key 17), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
SaslHandshakeRequest 0-1
  mechanism: string 0+
"""

RESPONSE = """
SaslHandshakeResponse 0-1
  error_code: error 0+
  mechanisms: []string 0+
"""
