"""init_producer_id (api key 22), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
InitProducerIdRequest 0-6 flexible=2+
  transactional_id: string 0+ null@0+
  transaction_timeout: ms32 0+
  producer_id: int64 3+ =-1
  producer_epoch: int16 3+ =-1
  enable2_pc: bool 6+
  keep_prepared_txn: bool 6+
"""

RESPONSE = """
InitProducerIdResponse 0-6 flexible=2+
  throttle_time: ms32 0+
  error_code: error 0+
  producer_id: int64 0+ =-1
  producer_epoch: int16 0+
  ongoing_txn_producer_id: int64 6+ =-1
  ongoing_txn_producer_epoch: int16 6+ =-1
"""
