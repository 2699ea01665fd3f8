"""The schemas of every API, one module each, in the text form of `fenceline.wire.schema`. Generated; do not edit.

They are imported when the first request of an API comes. `tests/wire/test_schemas.py` compares them with kio's classes,
`python -m tests.wire.kio_schemas` writes them anew.
"""
