"""list_config_resources (api key 74), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
ListConfigResourcesRequest 0-1 flexible=0+
  resource_types: []int8 1+
"""

RESPONSE = """
ListConfigResourcesResponse 0-1 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
  config_resources: []ConfigResource 0+
    resource_name: string 0+
    resource_type: int8 1+ =16
"""
