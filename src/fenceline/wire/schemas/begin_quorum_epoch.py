"""begin_quorum_epoch (api key 53), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
BeginQuorumEpochRequest 0-1 flexible=1+
  cluster_id: string 0+ null@0+
  voter_id: int32 1+ =-1
  topics: []TopicData 0+
    topic_name: string 0+
    partitions: []PartitionData 0+
      partition_index: int32 0+
      voter_directory_id: uuid 1+
      leader_id: int32 0+
      leader_epoch: int32 0+
  leader_endpoints: []LeaderEndpoint 1+
    name: string 1+
    host: string 1+
    port: uint16 1+
"""

RESPONSE = """
BeginQuorumEpochResponse 0-1 flexible=1+
  error_code: error 0+
  topics: []TopicData 0+
    topic_name: string 0+
    partitions: []PartitionData 0+
      partition_index: int32 0+
      error_code: error 0+
      leader_id: int32 0+
      leader_epoch: int32 0+
  node_endpoints: []NodeEndpoint 1+ tag0@1+
    node_id: int32 1+
    host: string 1+
    port: uint16 1+
"""
