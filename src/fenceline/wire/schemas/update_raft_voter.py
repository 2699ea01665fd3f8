"""update_raft_voter (api key 82), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
UpdateRaftVoterRequest 0 flexible=0+
  cluster_id: string 0+ null@0+
  current_leader_epoch: int32 0+
  voter_id: int32 0+
  voter_directory_id: uuid 0+
  listeners: []Listener 0+
    name: string 0+
    host: string 0+
    port: uint16 0+
  k_raft_version_feature: KRaftVersionFeature 0+
    min_supported_version: int16 0+
    max_supported_version: int16 0+
"""

RESPONSE = """
UpdateRaftVoterResponse 0 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
  current_leader: CurrentLeader 0+ tag0@0+
    leader_id: int32 0+ =-1
    leader_epoch: int32 0+ =-1
    host: string 0+
    port: int32 0+
"""
