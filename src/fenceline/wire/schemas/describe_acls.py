"""describe_acls (api key 29), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
DescribeAclsRequest 1-3 flexible=2+
  resource_type_filter: int8 1+
  resource_name_filter: string 1+ null@1+
  pattern_type_filter: int8 1+ =3
  principal_filter: string 1+ null@1+
  host_filter: string 1+ null@1+
  operation: int8 1+
  permission_type: int8 1+
"""

RESPONSE = """
DescribeAclsResponse 1-3 flexible=2+
  throttle_time: ms32 1+
  error_code: error 1+
  error_message: string 1+ null@1+
  resources: []DescribeAclsResource 1+
    resource_type: int8 1+
    resource_name: string 1+
    pattern_type: int8 1+ =3
    acls: []AclDescription 1+
      principal: string 1+
      host: string 1+
      operation: int8 1+
      permission_type: int8 1+
"""
