"""`garrison serve`: the web page of a home, for whoever has its address.

The rule of this room: what listens is loaded only here; the address is the only thing that is printed.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from garrison.cli import completion
from garrison.cli.commands import Command
from garrison.cli.options import home_option
from garrison.cli.output import print_message
from garrison.cli.resolve import existing_run
from garrison.config import find_home
from garrison.errors import UsageError

PORT = 8642


@click.command(cls=Command, examples=(
    ("garrison serve", "prints an address for the browser; Ctrl-C ends it"),
    ("garrison serve --run crew-1 --read-only", "an address that may only look"),
    ("garrison serve --port 0", "any port that is free"),
))
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0: any that is free.")
@click.option("--run", metavar="RUN", shell_complete=completion.runs, help="The run to begin with.")
@click.option("--read-only", is_flag=True, help="Print the address that may look and change nothing.")
@click.option("--listen", "address", default="127.0.0.1", show_default=True, metavar="ADDRESS",
              help="An IP address that others can reach needs TLS, or --plain-http.")
@click.option("--name", "names", multiple=True, metavar="HOST", help="A name by which it is asked too (repeatable).")
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Certificate (PEM).")
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Its key (PEM).")
@click.option("--plain-http", is_flag=True, help="Serve others without TLS all the same.")
@click.option("--new-tokens", is_flag=True, help="Make new tokens: every address printed so far is worth nothing.")
@click.option("--until", "pid", type=int, hidden=True, help="End with that process.")
@home_option
def serve(port: int, run: str | None, address: str, names: tuple[str, ...], tls_cert: Path | None,
          tls_key: Path | None, pid: int | None, home: str | None, *, read_only: bool, plain_http: bool,
          new_tokens: bool) -> None:
    """Serve the home's web page to this machine: runs live, their nodes, queue, deaths, costs, and the butler.

    The printed address holds a token; whoever has it may do what the page offers.
    """
    from garrison.web.access import READ, WRITE, load_tokens
    from garrison.web.server import Endpoint
    from garrison.web.server import serve as serve_page

    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key go together")
    store = find_home(home)
    if run is not None:
        existing_run(store, run)
    tls = (tls_cert, tls_key) if tls_cert and tls_key else None
    endpoint = Endpoint(address, port, names, tls, plain_http).check()
    tokens = load_tokens(store, new=new_tokens)
    token = tokens[READ if read_only else WRITE]

    def ready(bound: int) -> None:
        chosen = f"&run={run}" if run else ""
        print(f"http{'s' if tls else ''}://{endpoint.shown}:{bound}/?token={token}{chosen}", flush=True)
        if sys.stdout.isatty():
            print_message("open it in a browser; Ctrl-C ends the server, not the runs")

    asyncio.run(serve_page(store, endpoint, tokens, ready, until=pid))
