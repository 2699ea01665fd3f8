"""describe_transactions (api key 65), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
DescribeTransactionsRequest 0 flexible=0+
  transactional_ids: []string 0+
"""

RESPONSE = """
DescribeTransactionsResponse 0 flexible=0+
  throttle_time: ms32 0+
  transaction_states: []TransactionState 0+
    error_code: error 0+
    transactional_id: string 0+
    transaction_state: string 0+
    transaction_timeout: ms32 0+
    transaction_start_time: time 0+
    producer_id: int64 0+
    producer_epoch: int16 0+
    topics: []TopicData 0+
      topic: string 0+
      partitions: []int32 0+
"""
