"""delete_share_group_offsets (api key 92), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
DeleteShareGroupOffsetsRequest 0 flexible=0+
  group_id: string 0+
  topics: []DeleteShareGroupOffsetsRequestTopic 0+
    topic_name: string 0+
"""

RESPONSE = """
DeleteShareGroupOffsetsResponse 0 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
  error_message: string 0+ null@0+
  responses: []DeleteShareGroupOffsetsResponseTopic 0+
    topic_name: string 0+
    topic_id: uuid 0+
    error_code: error 0+
    error_message: string 0+ null@0+
"""
