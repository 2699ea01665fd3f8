"""describe_quorum (api key 55), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
DescribeQuorumRequest 0-2 flexible=0+
  topics: []TopicData 0+
    topic_name: string 0+
    partitions: []PartitionData 0+
      partition_index: int32 0+
"""

RESPONSE = """
DescribeQuorumResponse 0-2 flexible=0+
  error_code: error 0+
  error_message: string 2+ null@2+
  topics: []TopicData 0+
    topic_name: string 0+
    partitions: []PartitionData 0+
      partition_index: int32 0+
      error_code: error 0+
      error_message: string 2+ null@2+
      leader_id: int32 0+
      leader_epoch: int32 0+
      high_watermark: int64 0+
      current_voters: []ReplicaState 0+
        replica_id: int32 0+
        replica_directory_id: uuid 2+
        log_end_offset: int64 0+
        last_fetch_timestamp: int64 1+ =-1
        last_caught_up_timestamp: int64 1+ =-1
      observers: []ReplicaState 0+
        replica_id: int32 0+
        replica_directory_id: uuid 2+
        log_end_offset: int64 0+
        last_fetch_timestamp: int64 1+ =-1
        last_caught_up_timestamp: int64 1+ =-1
  nodes: []Node 2+
    node_id: int32 2+
    listeners: []Listener 2+
      name: string 2+
      host: string 2+
      port: uint16 2+
"""
