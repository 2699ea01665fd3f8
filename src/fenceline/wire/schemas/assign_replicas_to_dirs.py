"""assign_replicas_to_dirs (api key 73), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
AssignReplicasToDirsRequest 0 flexible=0+
  broker_id: int32 0+
  broker_epoch: int64 0+ =-1
  directories: []DirectoryData 0+
    id_: uuid 0+
    topics: []TopicData 0+
      topic_id: uuid 0+
      partitions: []PartitionData 0+
        partition_index: int32 0+
"""

RESPONSE = """
AssignReplicasToDirsResponse 0 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
  directories: []DirectoryData 0+
    id_: uuid 0+
    topics: []TopicData 0+
      topic_id: uuid 0+
      partitions: []PartitionData 0+
        partition_index: int32 0+
        error_code: error 0+
"""
