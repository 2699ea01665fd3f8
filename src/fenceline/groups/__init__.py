"""The group coordinator, sans-I/O: members, generations and epochs, assignments and committed offsets.

Owns the rules. Never does I/O, reads a clock or draws randomness by itself: `now_ms` and `rng` come in, duties go out
(`messages.Append`, `messages.Answer`); `node.groups_driver` carries them out. State lives in `__consumer_offsets`
(`formats.md F7`), so a coordinator is rebuilt by replaying one partition of that topic.

    coordinator.GroupCoordinator   every partition this broker coordinates, the timers, the funnel for requests
      shard.Shard                  one partition: its groups, its timers, replay
        writes.Writes              what is being appended, and who waits for it
        removals.Removals          deletion and retention
        membership.Membership      JoinGroup, SyncGroup, Heartbeat, LeaveGroup, the sessions of members
        rebalance.Rebalance        gathering, generations, assignments, what members wait for
        offsets.OffsetStore        what was committed, by whom, for which topic id
          model.Group, states      data of a group, the transition table
        consumer_groups.ConsumerGroups   groups of the consumer protocol (KIP-848): their values, changes, undo
          consumer_membership      ConsumerGroupHeartbeat: joining, leaving, sessions; consumer_checks
          consumer_subscriptions   names and regular expressions that members subscribe to
          consumer_targets         epochs and targets; consumer_assignors, _uniform, a member's step (_reconcile)
          consumer_migration       from the classic protocol and back; consumer_classic serves classic members meanwhile
          consumer_regex, _topics  which topics an expression names, and the hash of those that are subscribed to
          consumer_model, _records, _replay    values, bytes, and the one step from a group to the next by a record
"""
