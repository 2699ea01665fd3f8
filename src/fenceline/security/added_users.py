"""The users of `fenceline format --add-scram`, in the form of Kafka's `kafka-storage format --add-scram`.

Owns the syntax. A password is turned into a credential at once, and is in no error. Rules: security.md A39.
"""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Callable
from typing import Final

from fenceline.errors import OperatorError
from fenceline.metadata.security_records import UserScramCredentialRecord
from fenceline.sasl.scram import (
    DIGESTS,
    FEWEST_ITERATIONS,
    MOST_STORED_ITERATIONS,
    NUMBERS,
    credential_of,
    digest_size,
    salted_password,
)

_ARGUMENT: Final = re.compile(r"(?P<mechanism>[^=\s]+)=\[(?P<parts>.*)\]", re.DOTALL)
_KEYS: Final = frozenset({"name", "password", "salt", "saltedpassword", "iterations"})
_SALT_BYTES: Final = 24


def added_user(text: str, random_bytes: Callable[[int], bytes]) -> UserScramCredentialRecord:
    """`SCRAM-SHA-256=[name=anna,password=secret]`, also with `salt` and `saltedpassword` in base64 and `iterations`.

    `random_bytes` makes a salt if there is none. Raises OperatorError.
    """
    match = _ARGUMENT.fullmatch(text.strip())
    if match is None:
        raise _invalid("it has not the form MECHANISM=[name=...,password=...]")
    mechanism = match["mechanism"]
    if mechanism not in DIGESTS:
        raise _invalid(f"the mechanism {mechanism} is not one of {', '.join(DIGESTS)}")
    given: dict[str, str] = {}
    for part in match["parts"].split(","):
        key, separator, value = part.strip().partition("=")
        if not separator or key not in _KEYS or key in given:
            raise _invalid(f"each of {', '.join(sorted(_KEYS))} can be given once, as key=value")
        given[key] = value.removeprefix('"').removesuffix('"')
    if not given.get("name"):
        raise _invalid("name is missing")
    if ("password" in given) == ("saltedpassword" in given):
        raise _invalid("give either password or saltedpassword")
    if "saltedpassword" in given and "salt" not in given:
        raise _invalid("a saltedpassword needs its salt")
    iterations = _iterations(given.get("iterations", str(FEWEST_ITERATIONS)))
    salt = _decoded(given["salt"], "salt") if "salt" in given else random_bytes(_SALT_BYTES)
    if "password" in given:
        salted = salted_password(mechanism, given["password"], salt, iterations)
    else:
        salted = _decoded(given["saltedpassword"], "saltedpassword")
    if not salt or len(salted) != digest_size(mechanism):
        raise _invalid(f"the salt is empty, or the saltedpassword has not {digest_size(mechanism)} bytes")
    made = credential_of(mechanism, salted, salt, iterations)
    return UserScramCredentialRecord(
        given["name"], NUMBERS[mechanism], made.salt, made.stored_key, made.server_key, made.iterations
    )


def _iterations(text: str) -> int:
    if not text.isascii() or not text.isdecimal() or not FEWEST_ITERATIONS <= int(text) <= MOST_STORED_ITERATIONS:
        raise _invalid(f"iterations must be {FEWEST_ITERATIONS} to {MOST_STORED_ITERATIONS}")
    return int(text)


def _decoded(text: str, key: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise _invalid(f"{key} is not base64") from None


def _invalid(reason: str) -> OperatorError:
    return OperatorError(
        f"--add-scram is invalid: {reason}", "Example: --add-scram 'SCRAM-SHA-512=[name=anna,password=secret]'"
    )
