"""The argument of --add-scram. Rules: security.md A39."""

from __future__ import annotations

import base64

import pytest

from fenceline.errors import OperatorError
from fenceline.sasl.scram import salted_password
from fenceline.security.added_users import added_user


def salt(count: int) -> bytes:
    return bytes(range(count))


def test_password_gets_a_salt() -> None:
    found = added_user("SCRAM-SHA-256=[name=anna,password=secret]", salt)
    assert (found.name, found.mechanism, found.iterations, found.salt) == ("anna", 1, 4096, salt(24))


def test_keys_are_those_of_kafka_storage() -> None:
    """Apache Kafka 4.3.1 printed them."""
    found = added_user("SCRAM-SHA-256=[name=anna,password=secret,salt=MW1xczVmbWVydXZ3]", salt)
    assert base64.b64encode(found.stored_key) == b"9vw7xfBvwwsMWi8UPaWjVbMQi1FIy8373k+60JyhorM="
    assert found.server_key[:4] == bytes((256 - 56, 73, 256 - 73, 256 - 6))


def test_same_credential_from_a_password_and_from_its_salted_form() -> None:
    encoded = base64.b64encode(b"MW1xczVmbWVydXZ3").decode()
    salted = base64.b64encode(salted_password("SCRAM-SHA-512", "se=cret", b"MW1xczVmbWVydXZ3", 8192)).decode()
    by_password = added_user(f'SCRAM-SHA-512=[name="anna", password="se=cret", salt={encoded}, iterations=8192]', salt)
    assert by_password == added_user(
        f"SCRAM-SHA-512=[name=anna,saltedpassword={salted},salt={encoded},iterations=8192]", salt
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "has not the form"),
        ("SCRAM-SHA-256", "has not the form"),
        ("PLAIN=[name=a,password=hunter2]", "mechanism PLAIN"),
        ("SCRAM-SHA-256=[password=hunter2]", "name is missing"),
        ("SCRAM-SHA-256=[name=,password=hunter2]", "name is missing"),
        ("SCRAM-SHA-256=[name=a]", "either password or saltedpassword"),
        ("SCRAM-SHA-256=[name=a,password=hunter2,saltedpassword=hunter2]", "either password or saltedpassword"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=hunter2]", "needs its salt"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=hunter2,salt=AAAA]", "not base64"),
        ("SCRAM-SHA-256=[name=a,saltedpassword=AAAA,salt=AAAA]", "32 bytes"),
        ("SCRAM-SHA-256=[name=a,password=hunter2,iterations=4095]", "iterations must be"),
        ("SCRAM-SHA-256=[name=a,password=hunter2,iterations=16385]", "iterations must be"),
        ("SCRAM-SHA-256=[name=a,password=hunter2,iterations=x]", "iterations must be"),
        ("SCRAM-SHA-256=[name=a,name=b,password=hunter2]", "once"),
        ("SCRAM-SHA-256=[name=a,password=hunter2,colour=red]", "once"),
    ],
)
def test_invalid_arguments_are_refused_without_their_secrets(text: str, reason: str) -> None:
    with pytest.raises(OperatorError, match=reason) as error:
        added_user(text, salt)
    assert "hunter2" not in str(error.value)
