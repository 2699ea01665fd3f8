"""alter_partition_reassignments (api key 45), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
AlterPartitionReassignmentsRequest 0-1 flexible=0+
  timeout: ms32 0+ =60000
  allow_replication_factor_change: bool 1+ =true
  topics: []ReassignableTopic 0+
    name: string 0+
    partitions: []ReassignablePartition 0+
      partition_index: int32 0+
      replicas: []int32 0+ null@0+
"""

RESPONSE = """
AlterPartitionReassignmentsResponse 0-1 flexible=0+
  throttle_time: ms32 0+
  allow_replication_factor_change: bool 1+ =true
  error_code: error 0+
  error_message: string 0+ null@0+
  responses: []ReassignableTopicResponse 0+
    name: string 0+
    partitions: []ReassignablePartitionResponse 0+
      partition_index: int32 0+
      error_code: error 0+
      error_message: string 0+ null@0+
"""
