"""alter_user_scram_credentials (api key 51), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
AlterUserScramCredentialsRequest 0 flexible=0+
  deletions: []ScramCredentialDeletion 0+
    name: string 0+
    mechanism: int8 0+
  upsertions: []ScramCredentialUpsertion 0+
    name: string 0+
    mechanism: int8 0+
    iterations: int32 0+
    salt: bytes 0+
    salted_password: bytes 0+
"""

RESPONSE = """
AlterUserScramCredentialsResponse 0 flexible=0+
  throttle_time: ms32 0+
  results: []AlterUserScramCredentialsResult 0+
    user: string 0+
    error_code: error 0+
    error_message: string 0+ null@0+
"""
