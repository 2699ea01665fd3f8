"""Whose quota applies, who shares it, and for how long a client is throttled. Rules: security.md A57 to A61."""

from __future__ import annotations

import pytest

from fenceline.metadata.image import QuotaEntity
from fenceline.quotas.client_quotas import ClientQuotas, MutationQuota, QuotaKind
from fenceline.quotas.entities import AddressQuotas, AppliedQuota, applied_quota
from fenceline.quotas.rates import Windows

KEY = QuotaKind.PRODUCE
ANNA_APP: QuotaEntity = (("client-id", "app"), ("user", "anna"))
ANNA_ANY: QuotaEntity = (("client-id", None), ("user", "anna"))
ANNA: QuotaEntity = (("user", "anna"),)
ANY_APP: QuotaEntity = (("client-id", "app"), ("user", None))
ANY_ANY: QuotaEntity = (("client-id", None), ("user", None))
ANY_USER: QuotaEntity = (("user", None),)
APP: QuotaEntity = (("client-id", "app"),)
ANY_CLIENT: QuotaEntity = (("client-id", None),)
LEVELS = [
    (ANNA_APP, ("anna", "app")),
    (ANNA_ANY, ("anna", "app")),
    (ANNA, ("anna", None)),
    (ANY_APP, ("anna", "app")),
    (ANY_ANY, ("anna", "app")),
    (ANY_USER, ("anna", None)),
    (APP, (None, "app")),
    (ANY_CLIENT, (None, "app")),
]


@pytest.mark.parametrize("first", range(len(LEVELS)))
def test_the_most_specific_quota_applies(first: int) -> None:
    quotas = {entity: {KEY: float(position)} for position, (entity, _) in enumerate(LEVELS) if position >= first}
    assert applied_quota(quotas, KEY, "anna", "app") == AppliedQuota(LEVELS[first][1], float(first))


def test_quotas_of_other_keys_and_clients_do_not_apply() -> None:
    quotas = {ANNA: {QuotaKind.FETCH: 1.0}, APP: {KEY: 2.0}}
    assert applied_quota(quotas, KEY, "anna", "app") == AppliedQuota((None, "app"), 2.0)
    assert applied_quota(quotas, KEY, "anna", "other") is None
    assert applied_quota({}, KEY, "anna", "app") is None


def test_the_quota_of_an_address() -> None:
    quotas = {
        (("ip", "1.2.3.4"),): {"connection_creation_rate": 5.0},
        (("ip", None),): {"connection_creation_rate": 9.0},
    }
    address_quotas = AddressQuotas("connection_creation_rate")
    assert address_quotas.of(quotas, "1.2.3.4") == 5
    assert address_quotas.of(quotas, "1.2.3.5") == 9
    assert address_quotas.of({}, "1.2.3.4") is None
    assert address_quotas.of(quotas, "1.2.3.4") == 5


@pytest.mark.parametrize(
    ("name", "address", "applies"),
    [
        ("2001:DB8::1", "2001:db8::1", True),
        ("2001:db8:0:0:0:0:0:1", "2001:db8::1", True),
        ("::ffff:1.2.3.4", "1.2.3.4", True),
        ("1.2.3.4", "::ffff:1.2.3.4", True),
        ("fe80::1", "fe80::1%eth0", True),
        ("2001:db8::2", "2001:db8::1", False),
        ("localhost", "127.0.0.1", False),
    ],
)
def test_addresses_have_many_forms(name: str, address: str, applies: bool) -> None:
    found = AddressQuotas("connection_creation_rate").of({(("ip", name),): {"connection_creation_rate": 5.0}}, address)
    assert found == (5 if applies else None)


def test_the_lowest_quota_of_an_address_with_several_names_applies() -> None:
    quotas = {(("ip", name),): {"rate": value} for name, value in (("::1", 3.0), ("0::1", 2.0), ("0:0::1", 4.0))}
    assert AddressQuotas("rate").of(quotas, "::1") == 2


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_limits_nobody(value: float) -> None:
    """Kafka's controller stores NaN."""
    quotas = quotas_of({ANNA: dict.fromkeys(QuotaKind, value), ANY_USER: dict.fromkeys(QuotaKind, 1.0)})
    assert quotas.record(QuotaKind.FETCH, "anna", "app", 1e9, 0) == 0
    assert quotas.most_to_fetch("anna", "app") is None
    assert quotas.mutations("anna", "app", 0, is_strict=True) is None
    assert quotas.most_to_fetch("otto", "app") is not None
    named = {(("ip", "1.2.3.4"),): {"rate": value}, (("ip", None),): {"rate": 1.0}}
    assert AddressQuotas("rate").of(named, "1.2.3.4") is None


def quotas_of(quotas: dict[QuotaEntity, dict[str, float]]) -> ClientQuotas:
    found = ClientQuotas(Windows(), Windows())
    found.follow(quotas)
    return found


def test_nothing_is_measured_without_a_quota() -> None:
    quotas = quotas_of({})
    assert not quotas.is_active
    quotas.follow({ANNA: {KEY: 100.0}})
    assert quotas.is_active
    assert quotas.record(KEY, "otto", "app", 1e9, 0) == 0
    assert quotas.record(QuotaKind.FETCH, "anna", "app", 1e9, 0) == 0


def test_clients_without_a_quota_are_known() -> None:
    quotas = quotas_of({ANNA: {KEY: 100.0}, APP: {QuotaKind.MUTATION: 1.0}})
    assert quotas.limits("anna", "other")
    assert not quotas.limits("otto", "other")
    assert quotas.limits("otto", "app")
    quotas.follow({ANY_USER: {QuotaKind.REQUEST: 1.0}})
    assert quotas.limits("otto", "other")


def test_clients_of_a_user_share_its_quota_and_those_of_a_default_do_not() -> None:
    quotas = quotas_of({ANNA: {KEY: 100.0}, ANY_CLIENT: {KEY: 100.0}})
    assert quotas.record(KEY, "anna", "one", 1_000, 0) == 0
    assert quotas.record(KEY, "anna", "two", 1_000, 0) == 10_000
    assert quotas.record(KEY, "otto", "one", 1_000, 0) == 0
    assert quotas.record(KEY, "emil", "one", 1_000, 0) == 10_000
    assert quotas.record(KEY, "emil", "two", 1_000, 0) == 0
    assert quotas.throttled[KEY] == 2
    assert quotas.throttled_ms[KEY] == 20_000


def test_what_was_not_sent_is_taken_back() -> None:
    quotas = quotas_of({ANNA: {QuotaKind.FETCH: 100.0}})
    assert quotas.record(QuotaKind.FETCH, "anna", "app", 2_000, 0) > 0
    quotas.take_back(QuotaKind.FETCH, "anna", "app", 2_000, 0)
    assert quotas.record(QuotaKind.FETCH, "anna", "app", 1_000, 0) == 0
    assert quotas.most_to_fetch("anna", "app") == 1_000
    assert quotas.most_to_fetch("otto", "app") is None


def test_the_throttle_of_request_time_is_limited() -> None:
    quotas = quotas_of({ANNA: {QuotaKind.REQUEST: 10.0}})
    assert quotas.record_time("anna", "app", 10**9, 0) == 0, "1 s of 10 is 10 %"
    assert quotas.record_time("anna", "app", 10**9, 0) == 1_000
    assert quotas.throttled_ms[QuotaKind.REQUEST] == 1_000


def test_a_changed_quota_applies_to_what_was_used_before() -> None:
    quotas = quotas_of({ANNA: {KEY: 1_000.0}})
    assert quotas.record(KEY, "anna", "app", 5_000, 0) == 0
    quotas.follow({ANNA: {KEY: 100.0}})
    assert quotas.record(KEY, "anna", "app", 0, 0) > 0


def mutations(quotas: ClientQuotas, now_ms: int, user: str = "anna", *, is_strict: bool = True) -> MutationQuota:
    found = quotas.mutations(user, "app", now_ms, is_strict=is_strict)
    assert found is not None
    return found


def test_mutations_are_refused_only_after_the_bucket_was_overdrawn() -> None:
    quotas = quotas_of({ANNA: {QuotaKind.MUTATION: 1.0}})
    assert quotas.mutations("otto", "app", 0, is_strict=True) is None
    first = mutations(quotas, 0)
    assert first.takes(20, 0)
    assert first.throttle_ms(0) == 0, "it was carried out"
    assert not first.takes(1, 0)
    assert first.throttle_ms(0) == 9_000
    assert first.throttle_ms(2_500) == 6_500, "the answer leaves later"
    assert first.throttle_ms(20_000) == 0
    again = mutations(quotas, 8_000)
    assert not again.takes(1, 8_000)
    assert again.throttle_ms(8_000) == 1_000
    assert mutations(quotas, 9_000).takes(1, 9_000)
    assert quotas.throttled[QuotaKind.MUTATION] == 2
    assert quotas.throttled_ms[QuotaKind.MUTATION] == 10_000


def test_mutations_of_older_clients_are_throttled() -> None:
    quotas = quotas_of({ANNA: {QuotaKind.MUTATION: 1.0}})
    first = mutations(quotas, 0, is_strict=False)
    assert first.takes(11, 0)
    assert first.throttle_ms(0) == 0
    assert first.takes(4, 0)
    assert first.takes(2, 0)
    assert first.throttle_ms(0) == 6_000
    assert quotas.throttled[QuotaKind.MUTATION] == 1


def test_a_bucket_outlasts_changes_of_quotas() -> None:
    quotas = quotas_of({ANNA: {QuotaKind.MUTATION: 1.0}})
    assert mutations(quotas, 0).takes(15, 0)
    quotas.follow({ANNA: {QuotaKind.MUTATION: 2.0}, APP: {KEY: 1.0}})
    refused = mutations(quotas, 0)
    assert not refused.takes(1, 0)
    assert refused.throttle_ms(0) == 2_000


def test_memory_is_bounded() -> None:
    quotas = quotas_of({ANY_CLIENT: {KEY: 100.0, QuotaKind.MUTATION: 1.0}})
    for number in range(25_000):
        quotas.record(KEY, "anna", str(number), 1, number * 5)
        found = quotas.mutations("anna", str(number), number * 5, is_strict=True)
        assert found is not None
        assert found.takes(1, number * 5)
    assert len(quotas._usage[KEY]._rates) <= 10_000
    assert len(quotas._usage[KEY]._applied) <= 10_000
    assert len(quotas._buckets) <= 10_000
