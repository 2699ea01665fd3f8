"""The protocol's bytes: frames, headers, and the bodies of every API, in both directions. Decides nothing.

`frame` cuts requests and responses out of their headers, `produce` and `fetch` are written by hand for the data path,
`entities` does every other API and `message` the records of the logs; these two are compiled from schemas (`schema`,
`compiler`). Whatever a peer sends, a parser gives a value or raises MalformedRequest, in memory bounded by the input.
"""
