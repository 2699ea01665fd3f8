"""The bytes of the protocol: frames, headers, and the bodies of every API, in both directions. Decides nothing.

`frame` splits requests and responses into header and body, `produce` and `fetch` are hand-written for the data path,
`entities` handles every other API and `message` the records of logs; these two are compiled from schemas (`schema`,
`compiler`). For any input, a parser returns a value or raises MalformedRequest, in memory bounded by the input.
"""
