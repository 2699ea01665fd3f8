"""Settings of a node whose listener has PLAIN with users, and other mechanisms."""

from __future__ import annotations

from fenceline.sasl.jaas import PLAIN_MODULE

TOKEN_SECRET = "the secret of the nodes"


def password_node(*mechanisms: str, **users: str) -> dict[str, str]:
    """Overrides for an `EmbeddedNode` with SASL_PLAINTEXT; delegation tokens are on."""
    passwords = {"broker": "of the broker", **users}
    known = " ".join(f'user_{name}="{password}"' for name, password in passwords.items())
    jaas = f'{PLAIN_MODULE} required username="broker" password="of the broker" {known};'
    return {
        "sasl.enabled.mechanisms": ",".join(("PLAIN", *mechanisms)),
        "sasl.mechanism.inter.broker.protocol": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": jaas,
        "delegation.token.secret.key": TOKEN_SECRET,
    }


def password_client(bootstrap: str, user: str, password: str) -> dict[str, str]:
    """Properties of a client that logs in with PLAIN."""
    return {
        "bootstrap.servers": bootstrap,
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": user,
        "sasl.password": password,
    }
