"""allocate_producer_ids (api key 67), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
AllocateProducerIdsRequest 0 flexible=0+
  broker_id: int32 0+
  broker_epoch: int64 0+ =-1
"""

RESPONSE = """
AllocateProducerIdsResponse 0 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
  producer_id_start: int64 0+
  producer_id_len: int32 0+
"""
