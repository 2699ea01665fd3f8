"""What each API needs of its sender's rights, and the answers to those who do not have them.

    table       the rows: API key -> the rights it asks about, and the check; the only place that says so
    checked     a handler with its check before it
    checks      what checks are made of
    refusals    the answer to a whole request that is refused
    topics, groups, transactions, configs, cluster     the checks, by family

A check removes from a request what its sender may not do; the handler sees the rest, and knows nothing of rights. The
answers to the removed parts are added to the handler's. Produce, Fetch, Metadata, DescribeTopicPartitions and the
heartbeat of a member with a regular expression ask `RequestContext.rights` themselves: the data path for its speed, the
others because what they show depends on it.
"""
