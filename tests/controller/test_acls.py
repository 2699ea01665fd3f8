"""Creation and deletion of ACLs by a controller. Their answers are compared with Kafka's in
`tests/node/api/handlers/test_acls.py`. Rules: controller.md C1, C2, C42."""

from __future__ import annotations

from fenceline.controller.requests import CreateAcls, CreateAclsAnswer, DeleteAcls, RequestOutcome
from fenceline.metadata.acl_index import AclFilter, AclRule
from fenceline.metadata.security_records import AccessControlEntryRecord, RemoveAccessControlEntryRecord
from tests.controller.helpers import Cluster

RAIN = AclRule(2, "rain", 3, "User:a", "*", 3, 3)
SNOW = RAIN._replace(resource_name="snow")
EVERY = AclFilter(1, None, 1, None, None, 1, 1)


def test_each_rule_has_an_id_of_its_own() -> None:
    cluster = Cluster()
    answer = cluster.ask(CreateAcls((RAIN, SNOW, RAIN)))
    assert answer == CreateAclsAnswer((RequestOutcome(),) * 3)
    made = [record for record in cluster.records if isinstance(record, AccessControlEntryRecord)]
    assert [record.resource_name for record in made] == ["rain", "snow"]
    assert len({record.id for record in made}) == 2
    assert cluster.ask(CreateAcls((SNOW,))) == CreateAclsAnswer((RequestOutcome(),))
    assert cluster.records == []


def test_an_acl_is_removed_once_and_listed_for_each_filter() -> None:
    cluster = Cluster()
    cluster.ask(CreateAcls((RAIN, SNOW)))
    answer = cluster.ask(DeleteAcls((EVERY, EVERY._replace(resource_name="rain"), EVERY._replace(host="1.2.3.4"))))
    assert [sorted(each.acls) for each in answer.filters] == [[RAIN, SNOW], [RAIN], []]
    assert [type(record) for record in cluster.records] == [RemoveAccessControlEntryRecord] * 2
    assert not cluster.image.acls
    assert [each.acls for each in cluster.ask(DeleteAcls((EVERY,))).filters] == [()]


def test_rules_that_were_never_committed_are_forgotten() -> None:
    cluster = Cluster()
    cluster.ask(CreateAcls((RAIN,)))
    committed, end = cluster.image, cluster.controller.next_offset
    cluster.ask(CreateAcls((SNOW,)))
    cluster.ask(DeleteAcls((EVERY._replace(resource_name="rain"),)))
    cluster.controller.reset(committed, end)
    assert [each.acls for each in cluster.ask(DeleteAcls((EVERY._replace(host="nowhere"), EVERY))).filters] == [
        (),
        (RAIN,),
    ]
    cluster.ask(CreateAcls((SNOW,)))
    assert len(cluster.records) == 1
