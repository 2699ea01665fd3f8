"""describe_delegation_token (api key 41), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
DescribeDelegationTokenRequest 1-3 flexible=2+
  owners: []DescribeDelegationTokenOwner 1+ null@1+
    principal_type: string 1+
    principal_name: string 1+
"""

RESPONSE = """
DescribeDelegationTokenResponse 1-3 flexible=2+
  error_code: error 1+
  tokens: []DescribedDelegationToken 1+
    principal_type: string 1+
    principal_name: string 1+
    token_requester_principal_type: string 3+
    token_requester_principal_name: string 3+
    issue_timestamp: int64 1+
    expiry_timestamp: int64 1+
    max_timestamp: int64 1+
    token_id: string 1+
    hmac: bytes 1+
    renewers: []DescribedDelegationTokenRenewer 1+
      principal_type: string 1+
      principal_name: string 1+
  throttle_time: ms32 1+
"""
