"""The group coordinator, sans-I/O: members, generations and epochs, assignments and committed offsets.

Owns the rules. Never does I/O, reads a clock or draws random numbers: it takes `now_ms` and `rng` and returns duties
(`messages.Append`, `messages.Answer`), which `node.groups.driver` executes. State is stored in `__consumer_offsets`
(`formats.md F7`), so a coordinator is rebuilt by replaying one partition of that topic.

    coordinator.GroupCoordinator   every partition this broker coordinates, the timers, the entry point of requests
      shard.Shard                  one partition: its groups, its timers, replay
        writes.Writes              pending appends, and the requests that wait for them
        removals.Removals          deletion and retention
        membership.Membership      JoinGroup, SyncGroup, Heartbeat, LeaveGroup, member sessions
        rebalance.Rebalance        join phase, generations, assignments, parked requests
        offsets.OffsetStore        committed offsets by group, partition and topic id
          model.Group, states      data of a group, the transition table
        consumer_groups.ConsumerGroups   groups of the consumer protocol (KIP-848): their values, changes, undo
          consumer_membership      ConsumerGroupHeartbeat: joining, leaving, sessions; consumer_checks
          consumer_subscriptions   topic names and regular expressions
          consumer_targets         epochs and targets; consumer_assignors, _uniform, a member's step (_reconcile)
          consumer_migration       to and from the classic protocol; consumer_classic serves classic members meanwhile
          consumer_regex, _topics  the topics that match an expression, and the hash of the subscribed topics
          consumer_model, _records, _replay    values, bytes, and the effect of a record on a group
"""
