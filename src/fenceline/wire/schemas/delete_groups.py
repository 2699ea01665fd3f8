"""delete_groups (api key 42), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
DeleteGroupsRequest 0-2 flexible=2+
  groups_names: []string 0+
"""

RESPONSE = """
DeleteGroupsResponse 0-2 flexible=2+
  throttle_time: ms32 0+
  results: []DeletableGroupResult 0+
    group_id: string 0+
    error_code: error 0+
"""
