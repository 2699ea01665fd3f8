"""describe_share_group_offsets (api key 90), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
DescribeShareGroupOffsetsRequest 0-1 flexible=0+
  groups: []DescribeShareGroupOffsetsRequestGroup 0+
    group_id: string 0+
    topics: []DescribeShareGroupOffsetsRequestTopic 0+ null@0+
      topic_name: string 0+
      partitions: []int32 0+
"""

RESPONSE = """
DescribeShareGroupOffsetsResponse 0-1 flexible=0+
  throttle_time: ms32 0+
  groups: []DescribeShareGroupOffsetsResponseGroup 0+
    group_id: string 0+
    topics: []DescribeShareGroupOffsetsResponseTopic 0+
      topic_name: string 0+
      topic_id: uuid 0+
      partitions: []DescribeShareGroupOffsetsResponsePartition 0+
        partition_index: int32 0+
        start_offset: int64 0+
        leader_epoch: int32 0+
        lag: int64 1+ =-1
        error_code: error 0+
        error_message: string 0+ null@0+
    error_code: error 0+
    error_message: string 0+ null@0+
"""
