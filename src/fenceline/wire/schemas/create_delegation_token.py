"""create_delegation_token (api key 38), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
CreateDelegationTokenRequest 1-3 flexible=2+
  owner_principal_type: string 3+ null@3+
  owner_principal_name: string 3+ null@3+
  renewers: []CreatableRenewers 1+
    principal_type: string 1+
    principal_name: string 1+
  max_lifetime: ms64 1+
"""

RESPONSE = """
CreateDelegationTokenResponse 1-3 flexible=2+
  error_code: error 1+
  principal_type: string 1+
  principal_name: string 1+
  token_requester_principal_type: string 3+
  token_requester_principal_name: string 3+
  issue_timestamp: time 1+
  expiry_timestamp: time 1+
  max_timestamp: time 1+
  token_id: string 1+
  hmac: bytes 1+
  throttle_time: ms32 1+
"""
