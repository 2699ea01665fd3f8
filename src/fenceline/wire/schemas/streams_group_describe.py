"""streams_group_describe (api key 89), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
StreamsGroupDescribeRequest 0 flexible=0+
  group_ids: []string 0+
  include_authorized_operations: bool 0+
"""

RESPONSE = """
StreamsGroupDescribeResponse 0 flexible=0+
  throttle_time: ms32 0+
  groups: []DescribedGroup 0+
    error_code: error 0+
    error_message: string 0+ null@0+
    group_id: string 0+
    group_state: string 0+
    group_epoch: int32 0+
    assignment_epoch: int32 0+
    topology: Topology 0+ null@0+
      epoch: int32 0+
      subtopologies: []Subtopology 0+ null@0+
        subtopology_id: string 0+
        source_topics: []string 0+
        repartition_sink_topics: []string 0+
        state_changelog_topics: []TopicInfo 0+
          name: string 0+
          partitions: int32 0+
          replication_factor: int16 0+
          topic_configs: []KeyValue 0+
            key: string 0+
            value: string 0+
        repartition_source_topics: []TopicInfo 0+
          name: string 0+
          partitions: int32 0+
          replication_factor: int16 0+
          topic_configs: []KeyValue 0+
            key: string 0+
            value: string 0+
    members: []Member 0+
      member_id: string 0+
      member_epoch: int32 0+
      instance_id: string 0+ null@0+
      rack_id: string 0+ null@0+
      client_id: string 0+
      client_host: string 0+
      topology_epoch: int32 0+
      process_id: string 0+
      user_endpoint: Endpoint 0+ null@0+
        host: string 0+
        port: uint16 0+
      client_tags: []KeyValue 0+
        key: string 0+
        value: string 0+
      task_offsets: []TaskOffset 0+
        subtopology_id: string 0+
        partition: int32 0+
        offset: int64 0+
      task_end_offsets: []TaskOffset 0+
        subtopology_id: string 0+
        partition: int32 0+
        offset: int64 0+
      assignment: Assignment 0+
        active_tasks: []TaskIds 0+
          subtopology_id: string 0+
          partitions: []int32 0+
        standby_tasks: []TaskIds 0+
          subtopology_id: string 0+
          partitions: []int32 0+
        warmup_tasks: []TaskIds 0+
          subtopology_id: string 0+
          partitions: []int32 0+
      target_assignment: Assignment 0+
        active_tasks: []TaskIds 0+
          subtopology_id: string 0+
          partitions: []int32 0+
        standby_tasks: []TaskIds 0+
          subtopology_id: string 0+
          partitions: []int32 0+
        warmup_tasks: []TaskIds 0+
          subtopology_id: string 0+
          partitions: []int32 0+
      is_classic: bool 0+
    authorized_operations: int32 0+ =-2147483648
"""
