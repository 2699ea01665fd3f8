"""write_txn_markers (api key 27), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
WriteTxnMarkersRequest 1-2 flexible=1+
  markers: []WritableTxnMarker 1+
    producer_id: int64 1+
    producer_epoch: int16 1+
    transaction_result: bool 1+
    topics: []WritableTxnMarkerTopic 1+
      name: string 1+
      partition_indexes: []int32 1+
    coordinator_epoch: int32 1+
    transaction_version: int8 2+
"""

RESPONSE = """
WriteTxnMarkersResponse 1-2 flexible=1+
  markers: []WritableTxnMarkerResult 1+
    producer_id: int64 1+
    topics: []WritableTxnMarkerTopicResult 1+
      name: string 1+
      partitions: []WritableTxnMarkerPartitionResult 1+
        partition_index: int32 1+
        error_code: error 1+
"""
