"""metadata (api key 3), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
MetadataRequest 0-13 flexible=9+
  topics: []MetadataRequestTopic 0+ null@1+
    topic_id: uuid 10+
    name: string 0+ null@10+
  allow_auto_topic_creation: bool 4+ =true
  include_cluster_authorized_operations: bool 8-10
  include_topic_authorized_operations: bool 8+
"""

RESPONSE = """
MetadataResponse 0-13 flexible=9+
  throttle_time: ms32 3+
  brokers: []MetadataResponseBroker 0+
    node_id: int32 0+
    host: string 0+
    port: int32 0+
    rack: string 1+ null@1+
  cluster_id: string 2+ null@2+
  controller_id: int32 1+ =-1
  topics: []MetadataResponseTopic 0+
    error_code: error 0+
    name: string 0+ null@12+
    topic_id: uuid 10+
    is_internal: bool 1+
    partitions: []MetadataResponsePartition 0+
      error_code: error 0+
      partition_index: int32 0+
      leader_id: int32 0+
      leader_epoch: int32 7+ =-1
      replica_nodes: []int32 0+
      isr_nodes: []int32 0+
      offline_replicas: []int32 5+
    topic_authorized_operations: int32 8+ =-2147483648
  cluster_authorized_operations: int32 8-10 =-2147483648
  error_code: error 13+
"""
