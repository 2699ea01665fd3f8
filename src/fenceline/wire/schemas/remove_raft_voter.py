"""remove_raft_voter (api key 81), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
RemoveRaftVoterRequest 0 flexible=0+
  cluster_id: string 0+ null@0+
  voter_id: int32 0+
  voter_directory_id: uuid 0+
"""

RESPONSE = """
RemoveRaftVoterResponse 0 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
  error_message: string 0+ null@0+
"""
