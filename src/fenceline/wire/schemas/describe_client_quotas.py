"""describe_client_quotas (api key 48), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
DescribeClientQuotasRequest 0-1 flexible=1+
  components: []ComponentData 0+
    entity_type: string 0+
    match_type: int8 0+
    match: string 0+ null@0+
  strict: bool 0+
"""

RESPONSE = """
DescribeClientQuotasResponse 0-1 flexible=1+
  throttle_time: ms32 0+
  error_code: error 0+
  error_message: string 0+ null@0+
  entries: []EntryData 0+ null@0+
    entity: []EntityData 0+
      entity_type: string 0+
      entity_name: string 0+ null@0+
    values: []ValueData 0+
      key: string 0+
      value: float64 0+
"""
