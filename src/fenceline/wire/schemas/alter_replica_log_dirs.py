"""alter_replica_log_dirs (api key 34), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
AlterReplicaLogDirsRequest 1-2 flexible=2+
  dirs: []AlterReplicaLogDir 1+
    path: string 1+
    topics: []AlterReplicaLogDirTopic 1+
      name: string 1+
      partitions: []int32 1+
"""

RESPONSE = """
AlterReplicaLogDirsResponse 1-2 flexible=2+
  throttle_time: ms32 1+
  results: []AlterReplicaLogDirTopicResult 1+
    topic_name: string 1+
    partitions: []AlterReplicaLogDirPartitionResult 1+
      partition_index: int32 1+
      error_code: error 1+
"""
