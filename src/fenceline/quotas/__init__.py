"""Quotas of clients: how much each may send, read, ask and change.

    rates           the rate of what was recorded in a sliding window, and a bucket of tokens
    entities        which quota applies to a user and a client id, and who shares it
    until_idle      which clients are remembered
    client_quotas   the usage of all clients of one node, and for how long each is throttled

Pure: times come in as parameters, in milliseconds of a monotonic clock.
"""
