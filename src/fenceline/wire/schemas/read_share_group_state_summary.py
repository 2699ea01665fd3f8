"""read_share_group_state_summary (api key 87), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
ReadShareGroupStateSummaryRequest 0-1 flexible=0+
  group_id: string 0+
  topics: []ReadStateSummaryData 0+
    topic_id: uuid 0+
    partitions: []PartitionData 0+
      partition: int32 0+
      leader_epoch: int32 0+
"""

RESPONSE = """
ReadShareGroupStateSummaryResponse 0-1 flexible=0+
  results: []ReadStateSummaryResult 0+
    topic_id: uuid 0+
    partitions: []PartitionResult 0+
      partition: int32 0+
      error_code: error 0+
      error_message: string 0+ null@0+
      state_epoch: int32 0+
      leader_epoch: int32 0+
      start_offset: int64 0+
      delivery_complete_count: int32 1+ =-1
"""
