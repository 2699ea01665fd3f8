"""broker_registration (api key 62), generated from kio by tests/wire/kio_schemas.py."""

REQUEST = """
BrokerRegistrationRequest 0-4 flexible=0+
  broker_id: int32 0+
  cluster_id: string 0+
  incarnation_id: uuid 0+
  listeners: []Listener 0+
    name: string 0+
    host: string 0+
    port: uint16 0+
    security_protocol: int16 0+
  features: []Feature 0+
    name: string 0+
    min_supported_version: int16 0+
    max_supported_version: int16 0+
  rack: string 0+ null@0+
  is_migrating_zk_broker: bool 1+
  log_dirs: []uuid 2+
  previous_broker_epoch: int64 3+ =-1
"""

RESPONSE = """
BrokerRegistrationResponse 0-4 flexible=0+
  throttle_time: ms32 0+
  error_code: error 0+
  broker_epoch: int64 0+ =-1
"""
