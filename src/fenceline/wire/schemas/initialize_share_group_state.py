"""initialize_share_group_state (api key 83), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
InitializeShareGroupStateRequest 0 flexible=0+
  group_id: string 0+
  topics: []InitializeStateData 0+
    topic_id: uuid 0+
    partitions: []PartitionData 0+
      partition: int32 0+
      state_epoch: int32 0+
      start_offset: int64 0+
"""

RESPONSE = """
InitializeShareGroupStateResponse 0 flexible=0+
  results: []InitializeStateResult 0+
    topic_id: uuid 0+
    partitions: []PartitionResult 0+
      partition: int32 0+
      error_code: error 0+
      error_message: string 0+ null@0+
"""
