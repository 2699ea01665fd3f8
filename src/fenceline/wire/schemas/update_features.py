"""update_features (api key 57), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
UpdateFeaturesRequest 0-2 flexible=0+
  timeout: ms32 0+ =60000
  feature_updates: []FeatureUpdateKey 0+
    feature: string 0+
    max_version_level: int16 0+
    allow_downgrade: bool 0
    upgrade_type: int8 1+ =1
  validate_only: bool 1+
"""

RESPONSE = """
UpdateFeaturesResponse 0-2 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
  error_message: string 0+ null@0+
  results: []UpdatableFeatureResult 0-1
    feature: string 0-1
    error_code: error 0-1
    error_message: string 0-1 null@0-1
"""
