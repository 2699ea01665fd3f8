"""create_acls (api key 30), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
CreateAclsRequest 1-3 flexible=2+
  creations: []AclCreation 1+
    resource_type: int8 1+
    resource_name: string 1+
    resource_pattern_type: int8 1+ =3
    principal: string 1+
    host: string 1+
    operation: int8 1+
    permission_type: int8 1+
"""

RESPONSE = """
CreateAclsResponse 1-3 flexible=2+
  throttle_time: ms32 1+
  results: []AclCreationResult 1+
    error_code: error 1+
    error_message: string 1+ null@1+
"""
