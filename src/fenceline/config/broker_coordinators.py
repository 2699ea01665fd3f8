"""Broker keys of the coordinators: groups of each protocol, shares, transactions, producers.

Owns only this table; `config.key_table` defines its format. Facts are those of Kafka 4.3.1, descriptions our own.
"""

from __future__ import annotations

from typing import Final

TABLE: Final = """
group.coordinator.rebalance.protocols list classic,consumer,streams medium list:consumer,classic,share,streams inert
    Enabled group protocols; this node supports `classic`.
group.coordinator.threads int 4 high >=1 inert
    Threads of the group coordinator.
group.coordinator.background.threads int 2 high >=1 inert
    Threads for expensive work of the group coordinator.
group.coordinator.append.linger.ms int -1 medium >=-1 inert
    Milliseconds that the group coordinator batches writes; -1 adapts to the load.
offsets.commit.timeout.ms int 5000 high >=1
    Milliseconds that an offset commit may wait for replication.
offsets.load.buffer.size int 5242880 high >=1
    Bytes of one read while offsets are loaded.
offsets.topic.replication.factor short 3 high >=1
    Replicas of the offsets topic.
offsets.topic.num.partitions int 50 high >=1
    Partitions of the offsets topic; must not be changed later.
offsets.topic.segment.bytes int 104857600 high >=1
    Segment size in bytes of the offsets topic.
offsets.topic.compression.codec int 0 high
    Codec number of records in the offsets topic.
group.coordinator.cached.buffer.max.bytes int 1048588 medium >=524288 cluster-wide inert
    Largest write buffer in bytes that the group coordinator keeps.
offset.metadata.max.bytes int 4096 high
    Largest metadata in bytes of a committed offset.
offsets.retention.minutes int 10080 high >=1
    Minutes that offsets of an empty group or an unused topic are kept.
offsets.retention.check.interval.ms long 600000 high >=1
    Milliseconds between checks for expired offsets.
group.min.session.timeout.ms int 6000 medium
    Shortest session in milliseconds that a member may request.
group.max.session.timeout.ms int 1800000 medium
    Longest session in milliseconds that a member may request.
group.initial.rebalance.delay.ms int 3000 medium
    Milliseconds that a new group waits for more members.
group.max.size int 2147483647 medium >=1
    Maximum members of a group.
group.consumer.session.timeout.ms int 45000 medium >=1
    Session timeout in milliseconds of a member in the consumer protocol.
group.consumer.min.session.timeout.ms int 45000 medium >=1
    Minimum that a group may set for it.
group.consumer.max.session.timeout.ms int 60000 medium >=1
    Maximum that a group may set for it.
group.consumer.heartbeat.interval.ms int 5000 medium >=1
    Heartbeat interval in milliseconds in the consumer protocol.
group.consumer.min.heartbeat.interval.ms int 5000 medium >=1
    Minimum that a group may set for it.
group.consumer.max.heartbeat.interval.ms int 15000 medium >=1
    Maximum that a group may set for it.
group.consumer.max.size int 2147483647 medium >=1
    Maximum members of a group in the consumer protocol.
group.consumer.assignors list uniform,range medium list:uniform,range
    Assignors of the consumer protocol; the first is the default.
group.consumer.migration.policy string bidirectional medium in~:DISABLED,DOWNGRADE,UPGRADE,BIDIRECTIONAL
    Which groups may change between classic and consumer protocol.
group.consumer.assignment.interval.ms int 1000 medium >=0 cluster-wide
    Milliseconds between assignments of a group in the consumer protocol.
group.consumer.min.assignment.interval.ms int 0 medium >=0
    Minimum that a group may set for it.
group.consumer.max.assignment.interval.ms int 15000 medium >=0
    Maximum that a group may set for it.
group.consumer.regex.refresh.interval.ms int 600000 medium >=10000 internal
    Milliseconds between evaluations of the topics that match a subscription.
group.share.session.timeout.ms int 45000 medium >=1 inert
    Session timeout in milliseconds of a member of a share group.
group.share.min.session.timeout.ms int 45000 medium >=1 inert
    Minimum that a group may set for it.
group.share.max.session.timeout.ms int 60000 medium >=1 inert
    Maximum that a group may set for it.
group.share.heartbeat.interval.ms int 5000 medium >=1 inert
    Heartbeat interval in milliseconds of a share group.
group.share.min.heartbeat.interval.ms int 5000 medium >=1 inert
    Minimum that a group may set for it.
group.share.max.heartbeat.interval.ms int 15000 medium >=1 inert
    Maximum that a group may set for it.
group.share.max.size int 200 medium 1..1000 inert
    Maximum members of a share group.
group.share.assignors list simple medium list inert
    Assignor of share groups.
group.share.assignment.interval.ms int 1000 medium >=0 cluster-wide inert
    Milliseconds between assignments of a share group.
group.share.min.assignment.interval.ms int 0 medium >=0 inert
    Minimum that a group may set for it.
group.share.max.assignment.interval.ms int 15000 medium >=0 inert
    Maximum that a group may set for it.
group.share.initialize.retry.interval.ms int 30000 low >=1 internal inert
    Milliseconds before initialization of share state is retried.
group.streams.session.timeout.ms int 45000 medium >=1 inert
    Session timeout in milliseconds of a member of a streams group.
group.streams.min.session.timeout.ms int 45000 medium >=1 inert
    Minimum that a group may set for it.
group.streams.max.session.timeout.ms int 60000 medium >=1 inert
    Maximum that a group may set for it.
group.streams.heartbeat.interval.ms int 5000 medium >=1 inert
    Heartbeat interval in milliseconds of a streams group.
group.streams.min.heartbeat.interval.ms int 5000 medium >=1 inert
    Minimum that a group may set for it.
group.streams.max.heartbeat.interval.ms int 15000 medium >=1 inert
    Maximum that a group may set for it.
group.streams.max.size int 2147483647 medium >=1 inert
    Maximum members of a streams group.
group.streams.num.standby.replicas int 0 medium >=0 inert
    Standby copies of each task of a streams group.
group.streams.max.standby.replicas int 2 medium >=0 inert
    Maximum standby copies that a streams group may set.
group.streams.initial.rebalance.delay.ms int 3000 medium >=0 inert
    Milliseconds that a new streams group waits for more members.
group.streams.assignment.interval.ms int 1000 medium >=0 cluster-wide inert
    Milliseconds between assignments of a streams group.
group.streams.min.assignment.interval.ms int 0 medium >=0 inert
    Minimum that a group may set for it.
group.streams.max.assignment.interval.ms int 15000 medium >=0 inert
    Maximum that a group may set for it.
group.share.delivery.count.limit int 5 medium 2..10 inert
    Maximum deliveries of a record to a share group.
group.share.max.delivery.count.limit int 10 medium 5..25 inert
    Maximum that a group may set for it.
group.share.min.delivery.count.limit int 2 medium 2..5 inert
    Minimum that a group may set for it.
group.share.record.lock.duration.ms int 30000 medium 1000..3600000 inert
    Milliseconds that a record is locked for one member of a share group.
group.share.min.record.lock.duration.ms int 15000 medium 1000..30000 inert
    Minimum that a group may set for it.
group.share.max.record.lock.duration.ms int 60000 medium 30000..3600000 inert
    Maximum that a group may set for it.
group.share.partition.max.record.locks int 2000 medium 100..10000 inert
    Records of a partition that may be locked at once.
group.share.max.partition.max.record.locks int 4000 medium 2000..10000 inert
    Maximum that a group may set for it.
group.share.min.partition.max.record.locks int 100 medium 100..2000 inert
    Minimum that a group may set for it.
share.fetch.purgatory.purge.interval.requests int 1000 medium inert
    Clean-up interval of waiting share fetches.
group.share.max.share.sessions int 2000 medium >=1 inert
    Maximum share sessions of a broker.
group.share.persister.class.name string \
org.apache.kafka.server.share.persister.DefaultStatePersister medium internal inert
    Class that stores the state of share groups.
share.coordinator.state.topic.num.partitions int 50 high >=1 inert
    Partitions of the share state topic.
share.coordinator.state.topic.replication.factor short 3 high >=1 inert
    Replicas of the share state topic.
share.coordinator.state.topic.min.isr short 2 high >=1 inert
    Replicas of the share state topic that must be in sync.
share.coordinator.state.topic.segment.bytes int 104857600 high >=1 inert
    Segment size in bytes of the share state topic.
share.coordinator.threads int 1 medium >=1 inert
    Threads of the share coordinator.
share.coordinator.snapshot.update.records.per.snapshot int 500 medium 0..500 inert
    Updates of share state between snapshot records.
share.coordinator.load.buffer.size int 5242880 high >=1 inert
    Bytes of one read while share state is loaded.
share.coordinator.state.topic.compression.codec int 0 high inert
    Codec number of records in the share state topic.
share.coordinator.append.linger.ms int -1 medium >=-1 inert
    Milliseconds that the share coordinator batches writes; -1 adapts to the load.
share.coordinator.write.timeout.ms int 5000 high >=1 inert
    Milliseconds that a write of share state may wait for replication.
share.coordinator.state.topic.prune.interval.ms int 300000 low >=1 internal inert
    Milliseconds between prunings of the share state topic.
share.coordinator.cold.partition.snapshot.interval.ms int 300000 low >=1 internal inert
    Milliseconds between snapshot records of unused share state.
share.coordinator.cached.buffer.max.bytes int 1048588 medium >=524288 cluster-wide inert
    Largest write buffer in bytes that the share coordinator keeps.
transaction.state.log.min.isr int 2 high >=1
    Replicas of the transaction log that must be in sync.
transaction.state.log.load.buffer.size int 5242880 high >=1
    Bytes of one read while transactions are loaded.
transaction.state.log.replication.factor short 3 high >=1
    Replicas of the transaction log.
transaction.state.log.num.partitions int 50 high >=1
    Partitions of the transaction log; must not be changed later.
transaction.state.log.segment.bytes int 104857600 high >=1
    Segment size in bytes of the transaction log.
transaction.partition.verification.enable boolean true low cluster-wide
    Check that a partition belongs to the transaction before a write.
producer.id.expiration.ms int 86400000 low >=1 cluster-wide
    Milliseconds after which the state of an inactive idempotent producer expires.
producer.id.expiration.check.interval.ms int 600000 low >=1 internal
    Milliseconds between checks for inactive producers.
transactional.id.expiration.ms int 604800000 high >=1
    Milliseconds after which an inactive transactional id expires.
transaction.max.timeout.ms int 900000 high >=1
    Longest transaction in milliseconds that a producer may request.
transaction.abort.timed.out.transaction.cleanup.interval.ms int 10000 low >=1
    Milliseconds between checks for transactions that have timed out.
transaction.remove.expired.transaction.cleanup.interval.ms int 3600000 low >=1
    Milliseconds between checks for expired transactional ids.
transaction.two.phase.commit.enable boolean false low refused:2pc
    Allow transactions without timeout, for two-phase commit.
add.partitions.to.txn.retry.backoff.max.ms int 100 high >=0
    Maximum time in milliseconds that adding a partition to a transaction is retried.
add.partitions.to.txn.retry.backoff.ms int 20 high >=1
    Pause in milliseconds between those retries.
"""
