"""`fenceline lab`: clusters with faults and situations by HTTP, for tests in any language.

Owns the options and the messages. `fenceline.testing.lab.http` does the work.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Annotated

import typer

from fenceline.cli.output import examples, readable_errors
from fenceline.extras import require_packages

LAB_EXAMPLES = examples(
    ("fenceline lab", "serve on 127.0.0.1:8090 until Ctrl-C"),
    ("fenceline lab --port 0 --json", "any free port; the first line is a JSON document with the address"),
    ("curl -X POST http://127.0.0.1:8090/v1/clusters", "start three brokers (in another terminal)"),
)


def lab(
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0: any free port")] = 8090,
    host: Annotated[str, typer.Option(help="a loopback address, unless --allow-remote is given")] = "127.0.0.1",
    allow_remote: Annotated[
        bool,
        typer.Option("--allow-remote", help="accept other addresses: anyone who reaches them can start processes here"),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="print the address as one JSON document")] = False,
) -> None:
    """Serve the laboratory by HTTP: clusters, faults, situations and loss receipts, for tests in any language.

    What a client leaves behind ends with its lease; everything ends with this command.
    """
    with readable_errors():
        require_packages("fenceline lab", ["fastapi", "uvicorn"], "lab")
        from fenceline.testing.lab.http.server import listen, serve

        listener = listen(host, port, allow_remote=allow_remote)
        bound, bound_port = listener.getsockname()[:2]
        name = f"[{bound}]" if ":" in bound else bound
        url = f"http://{name}:{bound_port}"

        def print_ready() -> None:
            if as_json:
                print(json.dumps({"event": "ready", "url": url}), flush=True)
            else:
                print(
                    f"The laboratory serves on {url} until Ctrl-C; open this address for all requests.\n"
                    f"Begin with: curl -X POST {url}/v1/clusters",
                    flush=True,
                )

        serve(listener, allow_remote=allow_remote, on_ready=print_ready)
        # All clusters have ended. Threads of requests that still wait for something cannot be ended otherwise.
        sys.stdout.flush()
        os._exit(0)
