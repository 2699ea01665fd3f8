"""envelope (api key 58), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
EnvelopeRequest 0 flexible=0+
  request_data: bytes 0+
  request_principal: bytes 0+ null@0+
  client_host_address: bytes 0+
"""

RESPONSE = """
EnvelopeResponse 0 flexible=0+
  response_data: bytes 0+ null@0+
  error_code: error 0+
"""
