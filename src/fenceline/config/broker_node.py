"""Broker keys of the node itself: listeners, logs, replication, metadata, quorum, metrics.

Owns only this table; `config.key_table` defines its format. Facts are those of Kafka 4.3.1, descriptions our own.
"""

from __future__ import annotations

from typing import Final

TABLE: Final = """
broker.id int -1 high
    Older name of node.id.
message.max.bytes int 1048588 high >=0 cluster-wide
    Largest record batch in bytes, after compression; topics may set max.message.bytes.
num.io.threads int 8 high >=1 cluster-wide inert
    Request threads; this node uses one event loop instead.
num.replica.alter.log.dirs.threads int null high
    Replicas moved between log directories at the same time; at most two.
background.threads int 10 high >=1 cluster-wide inert
    Threads for background work.
request.timeout.ms int 30000 high
    Milliseconds that this node waits for the response to its own requests.
socket.connection.setup.timeout.ms long 10000 medium inert
    Initial timeout in milliseconds of connection setup.
socket.connection.setup.timeout.max.ms long 30000 medium inert
    Maximum timeout in milliseconds of connection setup.
config.providers list "" low list cluster-wide
    Plug-ins that provide config values from external sources.
authorizer.class.name string "" low in:,org.apache.kafka.metadata.authorizer.StandardAuthorizer
    Authorizer class: empty, or Kafka's StandardAuthorizer, whose rules are in the metadata log.
early.start.listeners list null high list inert
    Listeners that open before the authorizer is ready.
broker.rack string null medium
    Rack of the broker; replicas are spread over racks.
controlled.shutdown.enable boolean true medium
    Move leadership away before a clean shutdown.
delete.topic.enable boolean true high
    Whether topics can be deleted.
compression.type string producer high in:uncompressed,zstd,lz4,snappy,gzip,producer cluster-wide
    Codec of records on disk; the default of compression.type for topics.
compression.gzip.level int -1 medium 1..9|-1 cluster-wide
    Level of gzip if the broker compresses.
compression.lz4.level int 9 medium 1..17 cluster-wide
    Level of lz4 if the broker compresses.
compression.zstd.level int 3 medium -131072..22 cluster-wide
    Level of zstd if the broker compresses.
max.incremental.fetch.session.cache.slots int 1000 medium >=0
    Maximum fetch sessions of the broker.
fetch.max.bytes int 57671680 medium >=1024
    Maximum bytes in a fetch response.
max.request.partition.size.limit int 2000 medium >=1
    Maximum partitions in a DescribeTopicPartitions response.
unstable.api.versions.enable boolean false high internal refused:unstable
    Enable API versions that are still being developed.
unstable.feature.versions.enable boolean false high internal refused:unstable
    Allow feature levels that are still being developed.
process.roles list ! high list:broker,controller
    Roles of this process: broker, controller or both.
node.id int ! high >=0
    The node's id, unique in the cluster.
initial.broker.registration.timeout.ms int 60000 medium
    Milliseconds to wait for the first broker registration before the process exits.
broker.heartbeat.interval.ms int 2000 medium
    Milliseconds between heartbeats of a broker to the controller.
broker.session.timeout.ms int 9000 medium
    Milliseconds without a heartbeat after which a broker is fenced.
controller.listener.names list ! high list
    Listeners of the controllers; nodes connect to the first.
sasl.mechanism.controller.protocol string GSSAPI high
    SASL mechanism for connections to controllers.
controller.performance.sample.period.ms long 60000 medium >=100 internal inert
    Milliseconds between reports of slow controller events.
controller.performance.always.log.threshold.ms long 2000 medium >=0 internal inert
    Controller events longer than this many milliseconds are always logged.
server.max.startup.time.ms long 9223372036854775807 medium >=0 internal inert
    Maximum startup time in milliseconds.
metadata.log.max.record.bytes.between.snapshots long 20971520 high >=1
    Bytes of new metadata records after which a snapshot is written.
metadata.log.max.snapshot.interval.ms long 3600000 high >=0
    Milliseconds after which a snapshot of changed metadata is written; 0 disables the time limit.
metadata.log.dir string null high
    Directory of the metadata log; by default the first of log.dirs.
metadata.log.segment.bytes int 1073741824 high >=8388608
    Segment size in bytes of the metadata log.
metadata.log.segment.ms long 604800000 high
    Age in milliseconds at which a segment of the metadata log is closed.
metadata.max.retention.bytes long 104857600 high
    Bytes of old metadata log and snapshots to keep.
metadata.max.retention.ms long 604800000 high
    Milliseconds to keep old metadata log and snapshots.
metadata.max.idle.interval.ms int 500 low >=0
    Idle milliseconds after which the active controller writes a no-op record; 0 disables it.
internal.metadata.log.segment.bytes int null low internal
    Metadata segment size in bytes without a lower bound, for tests.
internal.metadata.max.batch.size.in.bytes int 8388608 low internal
    Largest batch in bytes of the metadata log, for tests.
internal.metadata.delete.delay.millis long 60000 low internal
    Milliseconds before removed files of the metadata log are deleted, for tests.
listeners list PLAINTEXT://:9092 high list per-broker
    Addresses to listen on, each NAME://host:port; an empty host means all interfaces.
advertised.listeners list null high list
    Addresses that clients connect to; by default those of listeners.
listener.security.protocol.map string \
SASL_SSL:SASL_SSL,PLAINTEXT:PLAINTEXT,SSL:SSL,SASL_PLAINTEXT:SASL_PLAINTEXT low per-broker
    Security protocol of each listener name.
socket.send.buffer.bytes int 102400 high
    Send buffer of a socket in bytes; -1 is the system's default.
socket.receive.buffer.bytes int 102400 high
    Receive buffer of a socket in bytes; -1, or no value (unlike Kafka), is the system's default, which grows.
socket.request.max.bytes int 104857600 high >=1
    Maximum request size in bytes; a larger request closes the connection.
socket.listen.backlog.size int 50 medium >=1
    Maximum pending connections of a listening socket.
max.connections.per.ip int 2147483647 medium >=0 cluster-wide
    Maximum connections from one address.
max.connections.per.ip.overrides string "" medium cluster-wide
    Limits for individual addresses, as host:count pairs.
max.connections int 2147483647 medium >=0 cluster-wide
    Maximum connections of the broker.
max.connection.creation.rate int 2147483647 medium >=0 cluster-wide
    Maximum new connections per second.
connections.max.idle.ms long 600000 medium
    Idle milliseconds after which a connection is closed; negative disables it.
connection.failed.authentication.delay.ms int 100 low >=0
    Milliseconds before a connection that failed to authenticate is closed.
queued.max.requests int 500 high >=1
    Maximum queued requests before connections are no longer read.
queued.max.request.bytes long -1 medium
    Maximum bytes of queued requests before connections are no longer read; -1 is no limit.
num.network.threads int 3 high >=1 cluster-wide inert
    Network threads; this node uses one event loop instead.
controller.socket.timeout.ms int 30000 medium inert
    Socket timeout in milliseconds between controller and brokers.
default.replication.factor int 1 medium
    Default replication factor of new topics.
replica.lag.time.max.ms long 30000 high
    Milliseconds after which a follower that has not caught up is removed from the ISR.
replica.socket.timeout.ms int 30000 high
    Socket timeout in milliseconds of replication.
replica.socket.receive.buffer.bytes int 65536 high
    Receive buffer in bytes of replication.
replica.fetch.max.bytes int 1048576 medium >=0
    Bytes per partition that a follower fetches.
replica.fetch.wait.max.ms int 500 high
    Longest wait in milliseconds of a follower's fetch.
replica.fetch.backoff.ms int 1000 medium >=0
    Milliseconds that a follower waits after an error of a partition.
replica.fetch.min.bytes int 1 high
    Bytes that a follower's fetch waits for.
replica.fetch.response.max.bytes int 10485760 medium >=0
    Bytes per response that a follower fetches.
num.replica.fetchers int 1 high >=1 cluster-wide
    Fetcher connections per source broker.
replica.high.watermark.checkpoint.interval.ms long 5000 high
    Milliseconds between checkpoints of the high watermarks.
fetch.purgatory.purge.interval.requests int 1000 medium inert
    Purge interval of waiting fetches, in requests.
producer.purgatory.purge.interval.requests int 1000 medium inert
    Purge interval of waiting produce requests, in requests.
delete.records.purgatory.purge.interval.requests int 1 medium inert
    Purge interval of waiting DeleteRecords requests, in requests.
auto.leader.rebalance.enable boolean true high
    Periodically move leadership back to preferred replicas.
leader.imbalance.check.interval.seconds long 300 high >=1
    Seconds between checks for leaders that are not the preferred replicas.
unclean.leader.election.interval.ms long 300000 medium >=1 internal
    Milliseconds between checks for partitions that need an unclean election.
unclean.leader.election.enable boolean false high cluster-wide
    Whether an out-of-sync replica may become leader if no other can; topics may override it.
security.inter.broker.protocol string PLAINTEXT medium in:PLAINTEXT,SSL,SASL_PLAINTEXT,SASL_SSL
    Security protocol between brokers.
inter.broker.listener.name string null medium
    Listener for communication between brokers.
replica.selector.class string null medium in:org.apache.kafka.common.replica.RackAwareReplicaSelector
    Let consumers fetch from a replica in their own rack; not set: from the leader. No other class is supported.
follower.fetch.last.tiered.offset.enable boolean false medium cluster-wide inert
    Let an empty follower start after the tiered part of the log.
num.partitions int 1 medium >=1
    Default number of partitions of new topics.
log.dir list /tmp/kafka-logs high list
    Data directory, if log.dirs is not set.
log.dirs list null high list
    Data directories, separated by commas.
cordoned.log.dirs list "" medium list per-broker
    Data directories that receive no new replicas; * for all.
log.segment.bytes int 1073741824 high >=1048576 cluster-wide
    Segment size in bytes for topics that do not set segment.bytes.
log.roll.ms long null high cluster-wide
    Segment age in milliseconds for topics that do not set segment.ms.
log.roll.hours int 168 high >=1
    Segment age in hours, if log.roll.ms is not set.
log.roll.jitter.ms long null high cluster-wide
    Default of segment.jitter.ms for topics.
log.roll.jitter.hours int 0 high >=0
    The same in hours, if log.roll.jitter.ms is not set.
log.retention.ms long null high cluster-wide
    Default of retention.ms for topics; -1 is for ever.
log.retention.minutes int null high
    The same in minutes, if log.retention.ms is not set.
log.retention.hours int 168 high
    The same in hours, if neither milliseconds nor minutes are set.
log.retention.bytes long -1 high cluster-wide
    Default of retention.bytes for topics.
log.retention.check.interval.ms long 300000 medium >=1
    Milliseconds between checks for segments to delete.
log.cleanup.policy list delete medium list:compact,delete cluster-wide
    Default of cleanup.policy for topics.
log.index.size.max.bytes int 10485760 medium >=4 cluster-wide
    Largest offset index in bytes of a segment.
log.index.interval.bytes int 4096 medium >=0 cluster-wide
    An index entry is added after this many bytes of records.
log.flush.interval.messages long 9223372036854775807 high >=1 cluster-wide
    Default of flush.messages for topics.
log.segment.delete.delay.ms long 60000 high >=0 cluster-wide
    Milliseconds that files of a removed segment are kept.
log.flush.scheduler.interval.ms long 9223372036854775807 high
    Milliseconds between checks for logs to flush.
log.flush.interval.ms long null high cluster-wide
    Default of flush.ms for topics.
log.flush.offset.checkpoint.interval.ms int 60000 high >=0
    Milliseconds between checkpoints of the recovery points.
log.flush.start.offset.checkpoint.interval.ms int 60000 high >=0
    Milliseconds between checkpoints of the log start offsets.
log.preallocate boolean false medium cluster-wide inert
    Preallocate the file of a new segment.
num.recovery.threads.per.data.dir int 2 high >=1 cluster-wide
    Threads per data directory for recovery at startup and flushing at shutdown.
auto.create.topics.enable boolean true high
    Create a topic that does not exist when a client requests it.
min.insync.replicas int 1 high >=1 cluster-wide
    Replicas that must be in sync for acks=all; topics may override it.
log.message.timestamp.type string CreateTime medium in:CreateTime,LogAppendTime cluster-wide
    Default of message.timestamp.type for topics.
log.message.timestamp.before.max.ms long 9223372036854775807 medium >=0 cluster-wide
    Default of message.timestamp.before.max.ms for topics.
log.message.timestamp.after.max.ms long 3600000 medium >=0 cluster-wide
    Default of message.timestamp.after.max.ms for topics.
create.topic.policy.class.name class null low refused:class
    Class that may reject a new topic.
alter.config.policy.class.name class null low refused:class
    Class that may reject a config change.
log.dir.failure.timeout.ms long 30000 low >=1
    Milliseconds after which a broker that cannot report a failed directory stops.
log.initial.task.delay.ms long 30000 low >=0 internal
    Milliseconds before background work on logs starts after startup.
log.cleaner.threads int 1 medium >=0 cluster-wide
    Compaction threads.
log.cleaner.io.max.bytes.per.second double 1.7976931348623157E308 medium cluster-wide
    Bytes per second that compaction may read and write.
log.cleaner.dedupe.buffer.size long 134217728 medium cluster-wide
    Memory in bytes for the key map of compaction.
log.cleaner.io.buffer.size int 524288 medium >=0 cluster-wide
    Memory in bytes for the I/O buffers of compaction.
log.cleaner.io.buffer.load.factor double 0.9 medium cluster-wide
    Maximum load factor of the key map of compaction.
log.cleaner.backoff.ms long 15000 medium >=0 cluster-wide
    Milliseconds that compaction sleeps if there is nothing to compact.
log.cleaner.min.cleanable.ratio double 0.5 medium 0..1 cluster-wide
    Default of min.cleanable.dirty.ratio for topics.
log.cleaner.enable boolean true medium
    Enable compaction.
log.cleaner.delete.retention.ms long 86400000 medium >=0 cluster-wide
    Default of delete.retention.ms for topics.
log.cleaner.min.compaction.lag.ms long 0 medium >=0 cluster-wide
    Default of min.compaction.lag.ms for topics.
log.cleaner.max.compaction.lag.ms long 9223372036854775807 medium >=1 cluster-wide
    Default of max.compaction.lag.ms for topics.
controller.quorum.voters list "" high list
    Static set of voters, each id@host:port.
controller.quorum.bootstrap.servers list "" high list
    Addresses for finding the controllers.
controller.quorum.election.timeout.ms int 1000 high >=0
    Milliseconds without a leader before a new election starts.
controller.quorum.fetch.timeout.ms int 2000 high >=0
    Milliseconds without a response from the leader before an election starts.
controller.quorum.election.backoff.max.ms int 1000 high >=0
    Maximum back-off in milliseconds before another election.
controller.quorum.append.linger.ms int 25 medium >=0
    Milliseconds that the leader batches records before writing them.
controller.quorum.request.timeout.ms int 2000 medium >=0
    Timeout in milliseconds of quorum requests.
controller.quorum.retry.backoff.ms int 20 low >=0
    Pause in milliseconds before a quorum request is retried.
controller.quorum.auto.join.enable boolean false low
    Let a controller add itself to the voters.
controller.quorum.fetch.snapshot.max.bytes int 1048576 low >=1
    Maximum bytes of a snapshot in one response.
controller.quorum.fetch.max.bytes int 1048576 low >=1
    Maximum bytes of the metadata log in one response.
metrics.num.samples int 2 low >=1 inert
    Samples kept for a metric.
metrics.sample.window.ms long 30000 low >=1 inert
    Length in milliseconds of a metrics sample.
metric.reporters list org.apache.kafka.common.metrics.JmxReporter low list cluster-wide inert
    Classes that report metrics; Prometheus is built in.
metrics.recording.level string INFO low inert
    Level of metrics recording.
kafka.metrics.reporters list "" low list inert
    Older classes that report metrics.
kafka.metrics.polling.interval.secs int 10 low >=1 inert
    Seconds between polls of older metrics reporters.
telemetry.max.bytes int 1048576 low >=1 inert
    Maximum bytes of client telemetry in one push.
quota.window.num int 11 low >=1
    Samples kept for client quotas.
replication.quota.window.num int 11 low >=1 inert
    Samples kept for replication quotas.
alter.log.dirs.replication.quota.window.num int 11 low >=1 inert
    Samples kept for the quota of moves between directories.
controller.quota.window.num int 11 low >=1
    Samples kept for controller quotas.
quota.window.size.seconds int 1 low >=1
    Length in seconds of a sample of client quotas.
replication.quota.window.size.seconds int 1 low >=1 inert
    Length in seconds of a sample of replication quotas.
alter.log.dirs.replication.quota.window.size.seconds int 1 low >=1 inert
    Length in seconds of a sample of the quota of moves between directories.
controller.quota.window.size.seconds int 1 low >=1
    Length in seconds of a sample of controller quotas.
client.quota.callback.class class null low refused:class
    Class that determines client quotas.
"""
