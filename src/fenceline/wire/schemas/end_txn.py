"""end_txn (api key 26), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
EndTxnRequest 0-5 flexible=3+
  transactional_id: string 0+
  producer_id: int64 0+
  producer_epoch: int16 0+
  committed: bool 0+
"""

RESPONSE = """
EndTxnResponse 0-5 flexible=3+
  throttle_time: ms32 0+
  error_code: error 0+
  producer_id: int64 5+ =-1
  producer_epoch: int16 5+ =-1
"""
