"""api_versions (api key 18), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
ApiVersionsRequest 0-4 flexible=3+
  client_software_name: string 3+
  client_software_version: string 3+
"""

RESPONSE = """
ApiVersionsResponse 0-4 flexible=3+
  error_code: error 0+
  api_keys: []ApiVersion 0+
    api_key: int16 0+
    min_version: int16 0+
    max_version: int16 0+
  throttle_time: ms32 1+
  supported_features: []SupportedFeatureKey 3+ tag0@3+
    name: string 3+
    min_version: int16 3+
    max_version: int16 3+
  finalized_features_epoch: int64 3+ tag1@3+ =-1
  finalized_features: []FinalizedFeatureKey 3+ tag2@3+
    name: string 3+
    max_version_level: int16 3+
    min_version_level: int16 3+
  zk_migration_ready: bool 3+ tag3@3+
"""
