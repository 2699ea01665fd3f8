"""Names of cipher suites: the standard ones, which Kafka's keys have, and OpenSSL's.

Owns their translation. Never knows which suites a library has.
"""

from __future__ import annotations


def is_of_tls_1_3(suite: str) -> bool:
    """By its standard name. Both names of such a suite are equal."""
    return suite.startswith("TLS_") and "_WITH_" not in suite


def openssl_name(suite: str) -> str:
    """`TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384` is ECDHE-RSA-AES256-GCM-SHA384 there. Other names stay."""
    if "_WITH_" not in suite:
        return suite
    exchange, _, cipher = suite.removeprefix("TLS_").partition("_WITH_")
    cipher = (
        cipher.replace("AES_128", "AES128")
        .replace("AES_256", "AES256")
        .replace("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305")
    )
    cipher = cipher.replace("_CBC_SHA", "_SHA")
    prefix = "" if exchange == "RSA" else f"{exchange.replace('_', '-')}-"
    return prefix + cipher.replace("_", "-")
