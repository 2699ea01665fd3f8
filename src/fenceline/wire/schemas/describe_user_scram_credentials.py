"""describe_user_scram_credentials (api key 50), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
DescribeUserScramCredentialsRequest 0 flexible=0+
  users: []UserName 0+ null@0+
    name: string 0+
"""

RESPONSE = """
DescribeUserScramCredentialsResponse 0 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
  error_message: string 0+ null@0+
  results: []DescribeUserScramCredentialsResult 0+
    user: string 0+
    error_code: error 0+
    error_message: string 0+ null@0+
    credential_infos: []CredentialInfo 0+
      mechanism: int8 0+
      iterations: int32 0+
"""
