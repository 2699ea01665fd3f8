"""The schemas of APIs, one module each, in the text form of `fenceline.wire.schema`. Generated; do not edit.

Only APIs that the sources name have one: `python -m tests.wire.kio_schemas NAME` adds others. They are imported when
the first request of an API comes. `tests/wire/test_schemas.py` compares them with kio's classes.
"""
