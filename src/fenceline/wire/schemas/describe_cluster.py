"""describe_cluster (api key 60), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
DescribeClusterRequest 0-2 flexible=0+
  include_cluster_authorized_operations: bool 0+
  endpoint_type: int8 1+ =1
  include_fenced_brokers: bool 2+
"""

RESPONSE = """
DescribeClusterResponse 0-2 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
  error_message: string 0+ null@0+
  endpoint_type: int8 1+ =1
  cluster_id: string 0+
  controller_id: int32 0+ =-1
  brokers: []DescribeClusterBroker 0+
    broker_id: int32 0+
    host: string 0+
    port: int32 0+
    rack: string 0+ null@0+
    is_fenced: bool 2+
  cluster_authorized_operations: int32 0+ =-2147483648
"""
