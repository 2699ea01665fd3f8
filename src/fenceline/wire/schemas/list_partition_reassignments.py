"""list_partition_reassignments (api key 46), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
ListPartitionReassignmentsRequest 0 flexible=0+
  timeout: ms32 0+ =60000
  topics: []ListPartitionReassignmentsTopics 0+ null@0+
    name: string 0+
    partition_indexes: []int32 0+
"""

RESPONSE = """
ListPartitionReassignmentsResponse 0 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
  error_message: string 0+ null@0+
  topics: []OngoingTopicReassignment 0+
    name: string 0+
    partitions: []OngoingPartitionReassignment 0+
      partition_index: int32 0+
      replicas: []int32 0+
      adding_replicas: []int32 0+
      removing_replicas: []int32 0+
"""
