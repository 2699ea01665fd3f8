"""describe_log_dirs (api key 35), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
DescribeLogDirsRequest 1-5 flexible=2+
  topics: []DescribableLogDirTopic 1+ null@1+
    topic: string 1+
    partitions: []int32 1+
"""

RESPONSE = """
DescribeLogDirsResponse 1-5 flexible=2+
  throttle_time: ms32 1+
  error_code: error 3+
  results: []DescribeLogDirsResult 1+
    error_code: error 1+
    log_dir: string 1+
    topics: []DescribeLogDirsTopic 1+
      name: string 1+
      partitions: []DescribeLogDirsPartition 1+
        partition_index: int32 1+
        partition_size: int64 1+
        offset_lag: int64 1+
        is_future_key: bool 1+
    total_bytes: int64 4+ =-1
    usable_bytes: int64 4+ =-1
    is_cordoned: bool 5+
"""
