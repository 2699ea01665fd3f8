"""delete_topics (api key 20), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
DeleteTopicsRequest 1-6 flexible=4+
  topic_names: []string 1-5
  topics: []DeleteTopicState 6+
    name: string 6+ null@6+
    topic_id: uuid 6+
  timeout: ms32 1+
"""

RESPONSE = """
DeleteTopicsResponse 1-6 flexible=4+
  throttle_time: ms32 1+
  responses: []DeletableTopicResult 1+
    name: string 1+ null@6+
    topic_id: uuid 6+
    error_code: error 1+
    error_message: string 5+ null@5+
"""
