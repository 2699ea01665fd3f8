"""ssl.principal.mapping.rules. Rules: security.md A8."""

from __future__ import annotations

import pytest

from fenceline.errors import OperatorError
from fenceline.security.name_rules import parse_name_rules, user_of_name

NAME = "CN=svc-One,OU=Svc Users,O=Acme\\, Inc.,C=DE"


@pytest.mark.parametrize(
    ("rules", "user"),
    [
        ("", NAME),
        ("DEFAULT", NAME),
        ("RULE:^CN=(.*?),OU=Svc.*$/$1/,DEFAULT", "svc-One"),
        ("RULE:^CN=(.*?),OU=Svc.*$/$1/L", "svc-one"),
        ("RULE:^CN=(.*?),OU=(.*?),O=.*$/$1@$2/U , DEFAULT", "SVC-ONE@SVC USERS"),
        ("RULE:CN=(.*?),OU=Other.*/$1/,RULE:.*OU=(.*?),.*/team $1/", "team Svc Users"),
        ("RULE:CN=(?<who>.*?),.*/$1/", "svc-One"),
        ("RULE:CN=(.*?),.*/$1-$2-\\$1/", "svc-One-$2-$1"),
        ("RULE:CN=(.*?),.*/a\\/b/", "a/b"),
        ("RULE:CN=svc/x/", None),
        ("RULE:CN=(.*?),OU=Other.*/$1/", None),
    ],
)
def test_first_rule_that_matches_the_whole_name(rules: str, user: str | None) -> None:
    assert user_of_name(NAME, parse_name_rules(rules)) == user


@pytest.mark.parametrize(
    "rules", ["default", "RULE:a", "RULE:a/b", "RULE:a/b/X", "DEFAULT DEFAULT", "RULE:(/b/", "DEFAULT,,DEFAULT", ","]
)
def test_malformed_rules(rules: str) -> None:
    with pytest.raises(OperatorError, match=r"ssl\.principal\.mapping\.rules"):
        parse_name_rules(rules)
