"""The SASL of a node's listeners.

Owns the mechanisms of each listener and where their credentials come from: `sasl.jaas.config` and the metadata. The
conversation itself is `fenceline.security.authentication`; this node's own logins are `peer_login`.

Rules: security.md A2, A3, A14 to A31.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Final

from fenceline.errors import OperatorError
from fenceline.node.net.key_source import KeySource
from fenceline.sasl.delegation_tokens import token_hmac, token_password
from fenceline.sasl.jaas import OAUTH_MODULE, PLAIN_MODULE, SCRAM_MODULE, LoginModule, parse_jaas
from fenceline.sasl.scram import (
    DIGESTS,
    FEWEST_ITERATIONS,
    NUMBERS,
    Credential,
    credential_of,
    salted_password,
)
from fenceline.security.authentication import SaslConversation
from fenceline.security.oauth import CheckedToken, OauthExchange, TokenRules, UnknownKey, check_token
from fenceline.security.sasl_server import (
    ChallengeForm,
    KnownCredential,
    PlainExchange,
    SaslExchange,
    ScramExchange,
    token_salt,
    usual_form,
)
from fenceline.wire.principal import Principal

if TYPE_CHECKING:
    from fenceline.config.node import NodeConfig
    from fenceline.metadata.image import MetadataImage
    from fenceline.node.clock import Clock

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
_MODULES: Final = {PLAIN: PLAIN_MODULE, **dict.fromkeys(DIGESTS, SCRAM_MODULE), OAUTHBEARER: OAUTH_MODULE}
SUPPORTED: Final = tuple(_MODULES)
_USER_OPTION: Final = "user_"
_MAX_MESSAGE_BYTES: Final = 64 << 10
"""No message of a mechanism is larger: a peer that is not authenticated must not take more memory (A69)."""
_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Mechanisms:
    names: tuple[str, ...]
    passwords: Mapping[str, str] = field(repr=False)
    """Of PLAIN, by user."""
    tokens: TokenRules | None
    """Of OAUTHBEARER, if it is enabled."""
    keys: KeySource | None


class ListenersSasl:
    """Of the listeners that one node opens."""

    def __init__(
        self, config: NodeConfig, listeners: Iterable[str], image: Callable[[], MetadataImage], clock: Clock
    ) -> None:
        """Raises OperatorError if a listener's mechanism is not supported, or has no credentials."""
        self._image = image
        self._clock = clock
        self._forms: dict[int, tuple[object, ChallengeForm]] = {}
        """Of challenges, by mechanism, and the credentials from which they are."""
        self._max_session_ms = config.get_int("connections.max.reauth.ms")
        self.max_message_bytes = min(config.get_int("sasl.server.max.receive.size"), _MAX_MESSAGE_BYTES)
        self.failure_delay_s = config.get_int("connection.failed.authentication.delay.ms") / 1000
        self._token_secret = config.token_secret
        # Equal at all nodes if they have one: otherwise the salt of an unknown user would be another at each.
        shared = self._token_secret and token_hmac(self._token_secret, "salts of unknown users")
        self._secret = shared or secrets.token_bytes(32)
        self._token_credentials: dict[tuple[str, str], Credential] = {}
        """By mechanism and token id: they are slow to compute."""
        self._listeners = {name: _mechanisms(config, name, clock) for name in listeners}

    def now_ms(self) -> tuple[int, int]:
        """Of the monotonic clock, and since the epoch."""
        return self._clock.monotonic_ms(), self._clock.now_ms()

    def conversation(self, listener: str) -> SaslConversation | None:
        """For a new connection; None if the listener has no SASL."""
        found = self._listeners.get(listener)
        if found is None:
            return None
        return SaslConversation(found.names, partial(self._begin, found), max_session_ms=self._max_session_ms)

    def _begin(self, listener: _Mechanisms, mechanism: str) -> SaslExchange:
        if mechanism == PLAIN:
            return PlainExchange(listener.passwords)
        if mechanism == OAUTHBEARER:
            assert listener.keys is not None, "the mechanism is enabled"
            listener.keys.look()
            return OauthExchange(partial(self._check_token, listener))
        find = partial(self._find, mechanism)
        form = partial(self._challenge_form, NUMBERS[mechanism])
        return ScramExchange(mechanism, find, nonce=secrets.token_urlsafe(24), secret=self._secret, form=form)

    def _challenge_form(self, mechanism: int) -> ChallengeForm:
        """Of most users. Looks at all credentials when one has changed."""
        credentials = self._image().scram
        known = self._forms.get(mechanism)
        if known is None or known[0] is not credentials:
            rows = ((each.salt, each.iterations) for each in credentials.values() if each.mechanism == mechanism)
            known = self._forms[mechanism] = credentials, usual_form(rows)
        return known[1]

    def _check_token(self, listener: _Mechanisms, token: str) -> CheckedToken:
        assert listener.keys is not None, "the mechanism is enabled"
        assert listener.tokens is not None, "the mechanism is enabled"
        try:
            return check_token(token, listener.keys.keys, listener.tokens, self._clock.now_ms() / 1000)
        except UnknownKey as error:
            listener.keys.unknown(error.key_id)
            raise

    def _find(self, mechanism: str, name: str, is_token: bool) -> KnownCredential | None:
        if is_token:
            return self._find_token(mechanism, name)
        record = self._image().scram.get((name, NUMBERS[mechanism]))
        if record is None:
            return None
        found = Credential(record.salt, record.stored_key, record.server_key, record.iterations)
        return KnownCredential(found, Principal(name=name), is_valid=partial(self._user_is_known, mechanism, name))

    def _user_is_known(self, mechanism: str, name: str, now_ms: int) -> bool:
        return (name, NUMBERS[mechanism]) in self._image().scram

    def _find_token(self, mechanism: str, token_id: str) -> KnownCredential | None:
        """A26. Kafka lets expired tokens log in until they are removed (A36, A69)."""
        if not self._token_is_valid(token_id, self._clock.now_ms()):
            return None
        token = self._image().delegation_tokens[token_id]
        principal = Principal(name=token.owner.partition(":")[2], token_authenticated=True)
        return KnownCredential(
            self._token_credential(mechanism, token_id),
            principal,
            token.expiration_timestamp,
            partial(self._token_is_valid, token_id),
        )

    def _token_is_valid(self, token_id: str, now_ms: int) -> bool:
        token = self._image().delegation_tokens.get(token_id)
        return bool(self._token_secret) and token is not None and now_ms < token.expiration_timestamp

    def _token_credential(self, mechanism: str, token_id: str) -> Credential:
        known = self._token_credentials.get((mechanism, token_id))
        if known is None:
            password = token_password(token_hmac(self._token_secret, token_id))
            salt = token_salt(self._secret, mechanism, token_id)
            salted = salted_password(mechanism, password, salt, FEWEST_ITERATIONS)
            known = credential_of(mechanism, salted, salt, FEWEST_ITERATIONS)
            tokens = self._image().delegation_tokens
            if len(self._token_credentials) >= len(DIGESTS) * len(tokens):
                self._token_credentials = {key: old for key, old in self._token_credentials.items() if key[1] in tokens}
            self._token_credentials[mechanism, token_id] = known
        return known


def _mechanisms(config: NodeConfig, listener: str, clock: Clock) -> _Mechanisms:
    lookup = config.for_listener(listener)
    names = tuple(name.strip() for name in (lookup("sasl.enabled.mechanisms") or "").split(",") if name.strip())
    if not names:
        raise OperatorError(
            f"Listener {listener}: sasl.enabled.mechanisms is empty", "Name one, such as SCRAM-SHA-512."
        )
    for name in names:
        if name not in SUPPORTED:
            raise unsupported(listener, name, "sasl.enabled.mechanisms")
    passwords = {}
    if PLAIN in names:
        module = login_module(config, listener, PLAIN)
        if module is None:
            raise OperatorError(
                f"Listener {listener}: PLAIN has no users",
                f"Set listener.name.{listener.lower()}.plain.sasl.jaas.config with options user_NAME=PASSWORD.",
            )
        passwords = {
            key.removeprefix(_USER_OPTION): value
            for key, value in module.options.items()
            if key.startswith(_USER_OPTION)
        }
    if OAUTHBEARER not in names:
        return _Mechanisms(names, passwords, None, None)
    return _Mechanisms(names, passwords, _token_rules(lookup), _key_source(lookup, listener, clock))


def _token_rules(lookup: Callable[[str], str | None]) -> TokenRules:
    prefix = "sasl.oauthbearer."
    audiences = (lookup(prefix + "expected.audience") or "").split(",")
    return TokenRules(
        lookup(prefix + "expected.issuer"),
        frozenset(each.strip() for each in audiences if each.strip()),
        lookup(prefix + "sub.claim.name") or "sub",
        int(lookup(prefix + "clock.skew.seconds") or 0),
    )


def _key_source(lookup: Callable[[str], str | None], listener: str, clock: Clock) -> KeySource:
    url = lookup("sasl.oauthbearer.jwks.endpoint.url")
    if not url:
        raise OperatorError(
            f"Listener {listener}: OAUTHBEARER has no keys, so that every token would have to be believed",
            "Set sasl.oauthbearer.jwks.endpoint.url to the keys of the issuer.",
        )
    refresh_ms = int(lookup("sasl.oauthbearer.jwks.endpoint.refresh.ms") or 0)
    return KeySource(url, refresh_ms=refresh_ms, now_ms=clock.monotonic_ms)


def login_module(config: NodeConfig, listener: str, mechanism: str) -> LoginModule | None:
    """The login module of one mechanism of a listener (A2); None if it is not set. Raises OperatorError."""
    key = f"listener.name.{listener.lower()}.{mechanism.lower()}.sasl.jaas.config"
    text = config.raw.get(key)
    if text is None:
        return None
    module = parse_jaas(text, key)
    if module.name != _MODULES[mechanism]:
        raise OperatorError(
            f"{key}: the login module {module.name} is not supported",
            f"The module of {mechanism} is {_MODULES[mechanism]}.",
        )
    return module


def unsupported(listener: str, mechanism: str, key: str) -> OperatorError:
    if mechanism == "GSSAPI":
        return OperatorError(
            f"Listener {listener}: GSSAPI (Kerberos) in {key} is not implemented",
            f"Set {key} to one of {', '.join(SUPPORTED)}. GSSAPI is Kafka's default.",
        )
    return OperatorError(
        f"Listener {listener}: the mechanism {mechanism} in {key} is not supported",
        f"Choose from {', '.join(SUPPORTED)}.",
    )
