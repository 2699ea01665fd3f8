"""`fenceline check-client`: a report card of a consumer or producer program."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from fenceline.cli.output import readable_errors
from fenceline.errors import OperatorError

CHECK_CLIENT_EXAMPLES = """\
The program reads KAFKA_BOOTSTRAP_SERVERS, KAFKA_TOPIC and (a consumer) KAFKA_GROUP from its environment. A consumer
begins at the earliest record and prints the value of each record that it has processed. A producer takes values from
its standard input, one a line, and prints each that is acknowledged. Both end on SIGTERM, a producer also when its
input ends.

    fenceline check-client -- python my_consumer.py

    fenceline check-client --kind producer --json card.json -- ./my-producer
"""


class ProgramKind(StrEnum):
    CONSUMER = "consumer"
    PRODUCER = "producer"


def check_client(
    command: Annotated[list[str], typer.Argument(help="the program and its arguments, after `--`")],
    kind: Annotated[ProgramKind, typer.Option(help="what the program is")] = ProgramKind.CONSUMER,
    case: Annotated[list[str] | None, typer.Option(help="only this case; may be repeated")] = None,
    name: Annotated[str, typer.Option(help="name of the client on the card (default: the program)")] = "",
    patience: Annotated[
        float, typer.Option(min=1, help="seconds until what was written after a case must have been processed")
    ] = 30,
    timelines: Annotated[
        bool, typer.Option(help="print what happened in each case, and what the program said")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="write the card to this file as well")] = None,
) -> None:
    """Run a consumer or producer program through every situation of the laboratory, and say what it did in each.

    It noticed, recovered, lost or duplicated records, hung or crashed. A program that loses records, hangs, or does not
    notice what it must, is marked with `!!`; the exit code is then 1. Takes about a minute and a half.
    """
    with readable_errors():
        from fenceline.testing.client_check.cards import text_of_verdict
        from fenceline.testing.client_check.check import check_program
        from fenceline.testing.client_check.stage import Patience

        if json_file is not None and not json_file.absolute().parent.is_dir():
            raise OperatorError(
                f"There is no folder {json_file.absolute().parent}", "Create it, or choose another file."
            )
        card = check_program(
            command,
            kind.value,
            name=name,
            cases=case or [],
            patience=Patience(recover_s=patience),
            on_verdict=lambda verdict, title: print(
                text_of_verdict(verdict, title, with_timeline=timelines), flush=True
            ),
        )
        if json_file is not None:
            json_file.write_text(card.to_json() + "\n")
    not_run = len(card.verdicts) - card.ran
    print(f"\n{card.good} of {card.ran} cases went well{f', {not_run} could not be made true' if not_run else ''}.")
    if card.good < len(card.verdicts):
        raise typer.Exit(1)
