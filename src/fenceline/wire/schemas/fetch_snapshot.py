"""fetch_snapshot (api key 59), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
FetchSnapshotRequest 0-1 flexible=0+
  cluster_id: string 0+ tag0@0+ null@0+
  replica_id: int32 0+ =-1
  max_bytes: int32 0+ =2147483647
  topics: []TopicSnapshot 0+
    name: string 0+
    partitions: []PartitionSnapshot 0+
      partition: int32 0+
      current_leader_epoch: int32 0+
      snapshot_id: SnapshotId 0+
        end_offset: int64 0+
        epoch: int32 0+
      position: int64 0+
      replica_directory_id: uuid 1+ tag0@1+
"""

RESPONSE = """
FetchSnapshotResponse 0-1 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
  topics: []TopicSnapshot 0+
    name: string 0+
    partitions: []PartitionSnapshot 0+
      index: int32 0+
      error_code: error 0+
      snapshot_id: SnapshotId 0+
        end_offset: int64 0+
        epoch: int32 0+
      current_leader: LeaderIdAndEpoch 0+ tag0@0+
        leader_id: int32 0+
        leader_epoch: int32 0+
      size: int64 0+
      position: int64 0+
      unaligned_records: records 0+
  node_endpoints: []NodeEndpoint 1+ tag0@1+
    node_id: int32 1+
    host: string 1+
    port: uint16 1+
"""
