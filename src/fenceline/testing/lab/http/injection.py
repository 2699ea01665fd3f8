"""The routes of faults, situations and waits, which follow from the tables of `operations`.

Owns the ids of faults. What a fault or a situation does is `ClusterFaults`' and `Situations`'.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, Union

from fastapi import APIRouter, Body, Query, Response
from pydantic import BaseModel, Field

from fenceline.errors import OperatorError
from fenceline.testing.lab.faults import ActiveFault
from fenceline.testing.lab.http.answers import RESPONSES
from fenceline.testing.lab.http.clusters import Leased, check_node
from fenceline.testing.lab.http.json_values import FaultView, Wait, fault_view, plain
from fenceline.testing.lab.http.leases import LeasedCluster, UnknownIdError
from fenceline.testing.lab.http.operations import (
    LabOperation,
    fault_operations,
    situation_operations,
    wait_operations,
)

FAULTS: Final = fault_operations()
SITUATIONS: Final = situation_operations()
WAITS: Final = wait_operations()
FaultRequest: Any = Annotated[
    Union[tuple(each.model for each in FAULTS.values())],  # noqa: UP007
    Field(discriminator="kind"),
    Body(openapi_examples={name: {"value": dict(each.example)} for name, each in FAULTS.items()}),
]

router = APIRouter(prefix="/v1", responses=RESPONSES)


class LabOperationView(BaseModel):
    """What HTTP offers of a method of the Python API. `arguments`: their JSON schema; `left_out`: arguments that have
    no form in JSON."""

    name: str
    doc: str
    arguments: dict[str, Any]
    left_out: list[str]
    example: dict[str, Any]


class EndedView(BaseModel):
    """How many faults were ended."""

    ended: int


# --- tables -----------------------------------------------------------------------------------------------------------


@router.get("/faults", response_model=list[LabOperationView], tags=["faults"])
def list_fault_kinds() -> list[LabOperationView]:
    """The kinds of faults, with their arguments."""
    return [_operation_view(each) for each in FAULTS.values()]


@router.get("/situations", response_model=list[LabOperationView], tags=["situations"])
def list_situations() -> list[LabOperationView]:
    """The situations, with their arguments."""
    return [_operation_view(each) for each in SITUATIONS.values()]


def _operation_view(operation: LabOperation) -> LabOperationView:
    return LabOperationView(
        name=operation.name,
        doc=operation.doc,
        arguments=operation.model.model_json_schema(),
        left_out=list(operation.left_out),
        example=dict(operation.example),
    )


# --- faults -----------------------------------------------------------------------------------------------------------


def inject_fault(leased: Leased, wanted: Any) -> Any:
    """Inject a fault. It ends with `DELETE .../faults/{id}`, with `DELETE .../faults`, or with the cluster."""
    node = getattr(wanted, "node", None)
    if node is not None:
        _check_running(leased, node)
    made = FAULTS[wanted.kind].call(leased.cluster.faults, wanted)
    if isinstance(made, ActiveFault):
        leased.faults[made.fault_id] = made
        return fault_view(made)
    return {"id": None, "text": f"{wanted.kind} of node {wanted.node}", "is_active": False, "count": made}


inject_fault.__annotations__["wanted"] = FaultRequest
router.add_api_route(
    "/clusters/{cluster_id}/faults",
    inject_fault,
    methods=["POST"],
    response_model=FaultView,
    status_code=201,
    tags=["faults"],
)


@router.get("/clusters/{cluster_id}/faults", response_model=list[FaultView], tags=["faults"])
def list_faults(leased: Leased) -> Any:
    """The faults in force, oldest first, with the requests that they have affected."""
    return [fault_view(each) for each in leased.cluster.faults.active]


@router.get("/clusters/{cluster_id}/faults/{fault_id}", response_model=FaultView, tags=["faults"])
def describe_fault(leased: Leased, fault_id: int, hits: Annotated[int, Query(ge=0)] = 0, wait_s: Wait = 30.0) -> Any:
    """A fault, in force or not. With `hits`, waits up to `wait_s` until it has affected so many requests."""
    fault = _fault(leased, fault_id)
    if hits:
        fault.wait_hits(hits, wait_s=wait_s)
    return fault_view(fault)


@router.delete("/clusters/{cluster_id}/faults/{fault_id}", response_model=FaultView, tags=["faults"])
def end_fault(leased: Leased, fault_id: int) -> Any:
    """End a fault; one that has ended stays so."""
    fault = _fault(leased, fault_id)
    leased.faults[fault_id] = fault
    fault.undo()
    return fault_view(fault)


@router.delete("/clusters/{cluster_id}/faults", response_model=EndedView, tags=["faults"])
def end_all_faults(leased: Leased) -> EndedView:
    """End all faults, and start the nodes that do not run: the cluster is then complete. For the end of a test."""
    count = len(leased.cluster.faults.active)
    leased.cluster.faults.undo_all()
    return EndedView(ended=count)


def _check_running(leased: LeasedCluster, node: int) -> None:
    """The laboratory would refuse as well, with the advice of its Python API."""
    check_node(leased, node)
    if not leased.cluster.processes.is_running(node):
        by = next((each.fault_id for each in leased.cluster.faults.active if each.starts == node), None)
        advice = "" if by is None else f", or end the fault that stopped it: DELETE .../faults/{by}"
        raise OperatorError(f"Node {node} is down", f"Start it first: POST .../nodes/{node}/start{advice}.")


def _fault(leased: LeasedCluster, fault_id: int) -> ActiveFault:
    known = {**leased.faults, **{each.fault_id: each for each in leased.cluster.faults.active}}
    if fault_id not in known:
        raise UnknownIdError(f"Cluster {leased.id} has no fault {fault_id}", "List them: GET .../faults.")
    return known[fault_id]


# --- situations and waits ---------------------------------------------------------------------------------------------


def _situation(operation: LabOperation) -> Callable[..., Any]:
    def endpoint(leased: Leased, wanted: Any) -> Any:
        made = operation.call(leased.cluster.situations, wanted)
        leased.faults.update({each.fault_id: each for each in _faults_in(made)})
        return plain(made)

    return _endpoint(endpoint, operation)


def _wait(operation: LabOperation) -> Callable[..., Any]:
    def endpoint(leased: Leased, wanted: Any) -> Response:
        operation.call(leased.cluster, wanted)
        return Response(status_code=204)

    return _endpoint(endpoint, operation)


def _endpoint(endpoint: Callable[..., Any], operation: LabOperation) -> Callable[..., Any]:
    endpoint.__annotations__["wanted"] = Annotated[
        operation.model, Body(openapi_examples={operation.name: {"value": dict(operation.example)}})
    ]
    endpoint.__doc__ = operation.doc
    return endpoint


def _faults_in(made: Any) -> Iterator[ActiveFault]:
    if isinstance(made, ActiveFault):
        yield made
    elif dataclasses.is_dataclass(made) and not isinstance(made, type):
        for each in dataclasses.fields(made):
            value = getattr(made, each.name)
            if isinstance(value, ActiveFault):
                yield value


for _each in SITUATIONS.values():
    router.add_api_route(
        f"/clusters/{{cluster_id}}/situations/{_each.name}",
        _situation(_each),
        methods=["POST"],
        name=_each.name,
        operation_id=f"situation_{_each.name}",
        summary=_each.summary,
        response_model=_each.returns,
        tags=["situations"],
    )
for _each in WAITS.values():
    router.add_api_route(
        f"/clusters/{{cluster_id}}/waits/{_each.name}",
        _wait(_each),
        methods=["POST"],
        name=f"wait_for_{_each.name}",
        operation_id=f"wait_for_{_each.name}",
        summary=_each.summary,
        status_code=204,
        tags=["groups"],
    )
