"""add_partitions_to_txn (api key 24), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
AddPartitionsToTxnRequest 0-5 flexible=3+
  v3_and_below_transactional_id: string 0-3
  v3_and_below_producer_id: int64 0-3
  v3_and_below_producer_epoch: int16 0-3
  v3_and_below_topics: []AddPartitionsToTxnTopic 0-3
    name: string 0-3
    partitions: []int32 0-3
  transactions: []AddPartitionsToTxnTransaction 4+
    transactional_id: string 4+
    producer_id: int64 4+
    producer_epoch: int16 4+
    verify_only: bool 4+
    topics: []AddPartitionsToTxnTopic 4+
      name: string 4+
      partitions: []int32 4+
"""

RESPONSE = """
AddPartitionsToTxnResponse 0-5 flexible=3+
  throttle_time: ms32 0+
  results_by_topic_v3_and_below: []AddPartitionsToTxnTopicResult 0-3
    name: string 0-3
    results_by_partition: []AddPartitionsToTxnPartitionResult 0-3
      partition_index: int32 0-3
      partition_error_code: error 0-3
  error_code: error 4+
  results_by_transaction: []AddPartitionsToTxnResult 4+
    transactional_id: string 4+
    topic_results: []AddPartitionsToTxnTopicResult 4+
      name: string 4+
      results_by_partition: []AddPartitionsToTxnPartitionResult 4+
        partition_index: int32 4+
        partition_error_code: error 4+
"""
