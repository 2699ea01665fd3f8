"""alter_client_quotas (api key 49), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
AlterClientQuotasRequest 0-1 flexible=1+
  entries: []EntryData 0+
    entity: []EntityData 0+
      entity_type: string 0+
      entity_name: string 0+ null@0+
    ops: []OpData 0+
      key: string 0+
      value: float64 0+
      remove: bool 0+
  validate_only: bool 0+
"""

RESPONSE = """
AlterClientQuotasResponse 0-1 flexible=1+
  throttle_time: ms32 0+
  entries: []EntryData 0+
    error_code: error 0+
    error_message: string 0+ null@0+
    entity: []EntityData 0+
      entity_type: string 0+
      entity_name: string 0+ null@0+
"""
