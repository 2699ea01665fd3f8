"""incremental_alter_configs (api key 44), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
IncrementalAlterConfigsRequest 0-1 flexible=1+
  resources: []AlterConfigsResource 0+
    resource_type: int8 0+
    resource_name: string 0+
    configs: []AlterableConfig 0+
      name: string 0+
      config_operation: int8 0+
      value: string 0+ null@0+
  validate_only: bool 0+
"""

RESPONSE = """
IncrementalAlterConfigsResponse 0-1 flexible=1+
  throttle_time: ms32 0+
  responses: []AlterConfigsResourceResponse 0+
    error_code: error 0+
    error_message: string 0+ null@0+
    resource_type: int8 0+
    resource_name: string 0+
"""
