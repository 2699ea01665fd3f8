"""create_partitions (api key 37), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
CreatePartitionsRequest 0-3 flexible=2+
  topics: []CreatePartitionsTopic 0+
    name: string 0+
    count: int32 0+
    assignments: []CreatePartitionsAssignment 0+ null@0+
      broker_ids: []int32 0+
  timeout: ms32 0+
  validate_only: bool 0+
"""

RESPONSE = """
CreatePartitionsResponse 0-3 flexible=2+
  throttle_time: ms32 0+
  results: []CreatePartitionsTopicResult 0+
    name: string 0+
    error_code: error 0+
    error_message: string 0+ null@0+
"""
