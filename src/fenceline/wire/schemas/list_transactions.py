"""list_transactions (api key 66), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
ListTransactionsRequest 0-2 flexible=0+
  state_filters: []string 0+
  producer_id_filters: []int64 0+
  duration_filter: int64 1+ =-1
  transactional_id_pattern: string 2+ null@2+
"""

RESPONSE = """
ListTransactionsResponse 0-2 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
  unknown_state_filters: []string 0+
  transaction_states: []TransactionState 0+
    transactional_id: string 0+
    producer_id: int64 0+
    transaction_state: string 0+
"""
