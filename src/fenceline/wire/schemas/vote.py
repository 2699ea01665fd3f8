"""vote (api key 52), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
VoteRequest 0-2 flexible=0+
  cluster_id: string 0+ null@0+
  voter_id: int32 1+ =-1
  topics: []TopicData 0+
    topic_name: string 0+
    partitions: []PartitionData 0+
      partition_index: int32 0+
      replica_epoch: int32 0+
      replica_id: int32 0+
      replica_directory_id: uuid 1+
      voter_directory_id: uuid 1+
      last_offset_epoch: int32 0+
      last_offset: int64 0+
      pre_vote: bool 2+
"""

RESPONSE = """
VoteResponse 0-2 flexible=0+
  error_code: error 0+
  topics: []TopicData 0+
    topic_name: string 0+
    partitions: []PartitionData 0+
      partition_index: int32 0+
      error_code: error 0+
      leader_id: int32 0+
      leader_epoch: int32 0+
      vote_granted: bool 0+
  node_endpoints: []NodeEndpoint 1+ tag0@1+
    node_id: int32 1+
    host: string 1+
    port: uint16 1+
"""
