"""The group coordinator, sans-I/O: members, generations and epochs, assignments and committed offsets.

Owns the rules. Never does I/O, reads a clock or draws random numbers: it takes `messages.Now` and `rng` and returns
duties (`messages.Append`, `messages.Answer`), which `node.groups.driver` executes. State is stored in
`__consumer_offsets` (`formats.md F7`), so a coordinator is rebuilt by replaying one partition of that topic.

    coordinator.GroupCoordinator   every partition this broker coordinates, the timers, the entry point of requests
    shard.Shard                    one partition: the parts below around one state, and which of them serves a request
      removals.Removals            deletion and retention
      offset_requests              OffsetCommit, OffsetFetch
      replay.Replay                the log's records applied to the state
      state.ShardState             the groups and their offsets; records: the meaning of any record
    consumer                       groups of the consumer protocol (KIP-848)
      classic_members              classic requests to such a group while it migrates
      membership                   ConsumerGroupHeartbeat: joining, leaving, sessions; checks
      migration                    to and from the classic protocol
      subscriptions                topic names and regular expressions (regex)
      targets                      epochs, targets (assignors, uniform), a member's next step (reconcile)
      groups.ConsumerGroups        their values, changes, undo
      model, records, replay       values, bytes, and the effect of a record on a group
    classic                        groups of the classic protocol
      membership                   JoinGroup, SyncGroup, Heartbeat, LeaveGroup, member sessions
      rebalance                    join phase, generations, assignments, parked requests
      model, states, records       values, the transition table, bytes
    offsets                        committed offsets by group, partition and topic id: values, bytes, rewinds
    writes.Writes                  duties: pending appends, and the requests that wait for them
    timers, messages               deadlines; requests, responses, duties

An import points down this list only (contracts in `pyproject.toml`).
"""
