"""describe_configs (api key 32), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
DescribeConfigsRequest 1-4 flexible=4+
  resources: []DescribeConfigsResource 1+
    resource_type: int8 1+
    resource_name: string 1+
    configuration_keys: []string 1+ null@1+ =
  include_synonyms: bool 1+
  include_documentation: bool 3+
"""

RESPONSE = """
DescribeConfigsResponse 1-4 flexible=4+
  throttle_time: ms32 1+
  results: []DescribeConfigsResult 1+
    error_code: error 1+
    error_message: string 1+ null@1+
    resource_type: int8 1+
    resource_name: string 1+
    configs: []DescribeConfigsResourceResult 1+
      name: string 1+
      value: string 1+ null@1+
      read_only: bool 1+
      config_source: int8 1+ =-1
      is_sensitive: bool 1+
      synonyms: []DescribeConfigsSynonym 1+
        name: string 1+
        value: string 1+ null@1+
        source: int8 1+
      config_type: int8 3+
      documentation: string 3+ null@3+
"""
