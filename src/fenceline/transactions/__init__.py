"""The transaction coordinator, sans-I/O: which transactions there are, what each request does, which records follow.

`coordinator` is the entry point; `decisions` has the rules of single requests; `records` the bytes of
`__transaction_state`. Imports no other coordinator, no log and no node.
"""
