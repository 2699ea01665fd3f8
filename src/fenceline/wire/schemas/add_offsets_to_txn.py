"""add_offsets_to_txn (api key 25), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
AddOffsetsToTxnRequest 0-4 flexible=3+
  transactional_id: string 0+
  producer_id: int64 0+
  producer_epoch: int16 0+
  group_id: string 0+
"""

RESPONSE = """
AddOffsetsToTxnResponse 0-4 flexible=3+
  throttle_time: ms32 0+
  error_code: error 0+
"""
