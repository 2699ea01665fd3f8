"""streams_group_heartbeat (api key 88), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
StreamsGroupHeartbeatRequest 0 flexible=0+
  group_id: string 0+
  member_id: string 0+
  member_epoch: int32 0+
  endpoint_information_epoch: int32 0+
  instance_id: string 0+ null@0+
  rack_id: string 0+ null@0+
  rebalance_timeout: ms32 0+ =-1
  topology: Topology 0+ null@0+
    epoch: int32 0+
    subtopologies: []Subtopology 0+
      subtopology_id: string 0+
      source_topics: []string 0+
      source_topic_regex: []string 0+
      state_changelog_topics: []TopicInfo 0+
        name: string 0+
        partitions: int32 0+
        replication_factor: int16 0+
        topic_configs: []KeyValue 0+
          key: string 0+
          value: string 0+
      repartition_sink_topics: []string 0+
      repartition_source_topics: []TopicInfo 0+
        name: string 0+
        partitions: int32 0+
        replication_factor: int16 0+
        topic_configs: []KeyValue 0+
          key: string 0+
          value: string 0+
      copartition_groups: []CopartitionGroup 0+
        source_topics: []int16 0+
        source_topic_regex: []int16 0+
        repartition_source_topics: []int16 0+
  active_tasks: []TaskIds 0+ null@0+
    subtopology_id: string 0+
    partitions: []int32 0+
  standby_tasks: []TaskIds 0+ null@0+
    subtopology_id: string 0+
    partitions: []int32 0+
  warmup_tasks: []TaskIds 0+ null@0+
    subtopology_id: string 0+
    partitions: []int32 0+
  process_id: string 0+ null@0+
  user_endpoint: Endpoint 0+ null@0+
    host: string 0+
    port: uint16 0+
  client_tags: []KeyValue 0+ null@0+
    key: string 0+
    value: string 0+
  task_offsets: []TaskOffset 0+ null@0+
    subtopology_id: string 0+
    partition: int32 0+
    offset: int64 0+
  task_end_offsets: []TaskOffset 0+ null@0+
    subtopology_id: string 0+
    partition: int32 0+
    offset: int64 0+
  shutdown_application: bool 0+
"""

RESPONSE = """
StreamsGroupHeartbeatResponse 0 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
  error_message: string 0+ null@0+
  member_id: string 0+
  member_epoch: int32 0+
  heartbeat_interval: ms32 0+
  acceptable_recovery_lag: int32 0+
  task_offset_interval: ms32 0+
  status: []Status 0+ null@0+
    status_code: int8 0+
    status_detail: string 0+
  active_tasks: []TaskIds 0+ null@0+
    subtopology_id: string 0+
    partitions: []int32 0+
  standby_tasks: []TaskIds 0+ null@0+
    subtopology_id: string 0+
    partitions: []int32 0+
  warmup_tasks: []TaskIds 0+ null@0+
    subtopology_id: string 0+
    partitions: []int32 0+
  endpoint_information_epoch: int32 0+
  partitions_by_user_endpoint: []EndpointToPartitions 0+ null@0+
    user_endpoint: Endpoint 0+
      host: string 0+
      port: uint16 0+
    active_partitions: []TopicPartition 0+
      topic: string 0+
      partitions: []int32 0+
    standby_partitions: []TopicPartition 0+
      topic: string 0+
      partitions: []int32 0+
"""
