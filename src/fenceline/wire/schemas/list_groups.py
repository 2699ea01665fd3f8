"""list_groups (api key 16), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
ListGroupsRequest 0-5 flexible=3+
  states_filter: []string 4+
  types_filter: []string 5+
"""

RESPONSE = """
ListGroupsResponse 0-5 flexible=3+
  throttle_time: ms32 1+
  error_code: error 0+
  groups: []ListedGroup 0+
    group_id: string 0+
    protocol_type: string 0+
    group_state: string 4+
    group_type: string 5+
"""
