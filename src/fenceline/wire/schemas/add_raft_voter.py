"""add_raft_voter (api key 80), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
AddRaftVoterRequest 0-1 flexible=0+
  cluster_id: string 0+ null@0+
  timeout: ms32 0+
  voter_id: int32 0+
  voter_directory_id: uuid 0+
  listeners: []Listener 0+
    name: string 0+
    host: string 0+
    port: uint16 0+
  ack_when_committed: bool 1+ =true
"""

RESPONSE = """
AddRaftVoterResponse 0-1 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
  error_message: string 0+ null@0+
"""
