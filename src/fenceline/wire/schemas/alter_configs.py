"""alter_configs (api key 33), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
AlterConfigsRequest 0-2 flexible=2+
  resources: []AlterConfigsResource 0+
    resource_type: int8 0+
    resource_name: string 0+
    configs: []AlterableConfig 0+
      name: string 0+
      value: string 0+ null@0+
  validate_only: bool 0+
"""

RESPONSE = """
AlterConfigsResponse 0-2 flexible=2+
  throttle_time: ms32 0+
  responses: []AlterConfigsResourceResponse 0+
    error_code: error 0+
    error_message: string 0+ null@0+
    resource_type: int8 0+
    resource_name: string 0+
"""
