"""`garrison serve`: serve the web page of a home to every holder of its address.

The server is imported only here; the address is the only output on stdout.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from garrison import extras
from garrison.cli import completion
from garrison.cli.commands import Command
from garrison.cli.options import home_option
from garrison.cli.output import print_message
from garrison.cli.resolve import existing_run
from garrison.config import find_home
from garrison.errors import UsageError

PORT = 8642


@click.command(cls=Command, renamed={"--name": "--hostname"}, examples=(
    ("garrison serve", "prints an address for the browser; Ctrl-C ends the server"),
    ("garrison serve --run crew-1 --read-only", "an address that can only watch"),
    ("garrison serve --port 0", "any free port"),
), option_groups={"Address": ("port", "address", "hostnames", "run", "read_only"),
                  "Security": ("tls_cert", "tls_key", "plain_http", "new_tokens"), "Forges": ("webhooks",)})
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 for any free port.")
@click.option("--run", metavar="RUN", shell_complete=completion.runs, help="Run to show first.")
@click.option("--read-only", is_flag=True, help="Print the address that can watch and change nothing.")
@click.option("--listen", "address", default="127.0.0.1", show_default=True, metavar="ADDRESS",
              help="IP address to listen on; one that others can reach needs TLS or --plain-http.")
@click.option("--hostname", "hostnames", multiple=True, metavar="HOST",
              help="Name by which clients may reach it, or the address of a reverse proxy (repeatable).")
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Certificate (PEM).")
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Its key (PEM).")
@click.option("--plain-http", is_flag=True, help="Serve others without TLS.")
@click.option("--new-tokens", is_flag=True, help="Make new tokens, which invalidates every address printed before.")
@click.option("--webhooks", is_flag=True,
              help="Receive webhooks of forges, which make runs with a pull request look at once.")
@click.option("--until", "pid", type=int, hidden=True, help="End with this process.")
@home_option
def serve(port: int, run: str | None, address: str, hostnames: tuple[str, ...], tls_cert: Path | None,
          tls_key: Path | None, pid: int | None, home: str | None, *, read_only: bool, plain_http: bool,
          new_tokens: bool, webhooks: bool) -> None:
    """Serve the home's web page to this machine: live runs, nodes, queue, deaths, costs, and the butler.

    The printed address contains a token, which allows everything that the page offers.
    """
    extras.require("web", "`garrison serve`")
    from garrison.web.access import READ, WEBHOOK, WRITE, load_tokens
    from garrison.web.server import Endpoint
    from garrison.web.server import serve as serve_page
    from garrison.web.webhooks import load_secret, secret_path

    if (tls_cert is None) != (tls_key is None):
        raise UsageError("--tls-cert and --tls-key go together")
    state = find_home(home)
    if run is not None:
        existing_run(state, run)
    tls = (tls_cert, tls_key) if tls_cert and tls_key else None
    endpoint = Endpoint(address, port, hostnames, tls, plain_http).check()
    tokens = load_tokens(state, new=new_tokens)
    token = tokens[READ if read_only else WRITE]
    secret = load_secret(state) if webhooks else ""

    def print_address(bound_port: int) -> None:
        shown_run = f"&run={run}" if run else ""
        print(f"{endpoint.origin(bound_port)}/?token={token}{shown_run}", flush=True)
        if webhooks:
            print_message(f"webhooks: {endpoint.origin(bound_port)}{WEBHOOK}, with the secret in {secret_path(state)}")
        if sys.stdout.isatty():
            print_message("open it in a browser; Ctrl-C ends the server, not the runs")

    asyncio.run(serve_page(state, endpoint, tokens, print_address, until=pid, webhook_secret=secret))
