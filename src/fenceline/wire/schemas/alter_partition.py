"""alter_partition (api key 56), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
AlterPartitionRequest 2-3 flexible=2+
  broker_id: int32 2+
  broker_epoch: int64 2+ =-1
  topics: []TopicData 2+
    topic_id: uuid 2+
    partitions: []PartitionData 2+
      partition_index: int32 2+
      leader_epoch: int32 2+
      new_isr: []int32 2
      new_isr_with_epochs: []BrokerState 3+
        broker_id: int32 3+
        broker_epoch: int64 3+ =-1
      leader_recovery_state: int8 2+
      partition_epoch: int32 2+
"""

RESPONSE = """
AlterPartitionResponse 2-3 flexible=2+
  throttle_time: ms32 2+
  error_code: error 2+
  topics: []TopicData 2+
    topic_id: uuid 2+
    partitions: []PartitionData 2+
      partition_index: int32 2+
      error_code: error 2+
      leader_id: int32 2+
      leader_epoch: int32 2+
      isr: []int32 2+
      leader_recovery_state: int8 2+
      partition_epoch: int32 2+
"""
