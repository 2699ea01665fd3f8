"""elect_leaders (api key 43), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
ElectLeadersRequest 0-2 flexible=2+
  election_type: int8 1+
  topic_partitions: []TopicPartitions 0+ null@0+
    topic: string 0+
    partitions: []int32 0+
  timeout: ms32 0+ =60000
"""

RESPONSE = """
ElectLeadersResponse 0-2 flexible=2+
  throttle_time: ms32 0+
  error_code: error 1+
  replica_election_results: []ReplicaElectionResult 0+
    topic: string 0+
    partition_result: []PartitionResult 0+
      partition_id: int32 0+
      error_code: error 0+
      error_message: string 0+ null@0+
"""
