"""`garrison metrics`: print a home's metrics in the Prometheus text format, or serve them on a loopback port."""

from __future__ import annotations

import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import click

from garrison import extras
from garrison.cli.commands import Command
from garrison.cli.options import home_option
from garrison.cli.output import print_message
from garrison.directories import find_home
from garrison.errors import Refused

_HOST = "127.0.0.1"


@click.command(cls=Command, examples=(
    ("garrison metrics > ~/node_exporter/garrison.prom", "for the textfile collector, from cron"),
    ("garrison metrics --serve 9477", "at http://127.0.0.1:9477/metrics, until Ctrl-C"),
))
@click.option("--serve", "port", type=click.IntRange(0, 65535), metavar="PORT",
              help="Serve on this port of 127.0.0.1 instead (0: any free port); reads only when scraped.")
@home_option
def metrics(port: int | None, home: str | None) -> None:
    """Print the home's runs, processes, queues and costs in Prometheus' text format."""
    extras.require("web", "`garrison metrics`")
    from garrison.web.metrics import render_metrics  # imported late, with the library for the format

    place = find_home(home)
    if port is None:
        sys.stdout.buffer.write(render_metrics(place))
        return
    server = _server(place, port)
    with server:
        print_message(f"metrics of {place} at http://{_HOST}:{server.server_address[1]}/metrics")
        server.serve_forever()


def _server(home: Path, port: int) -> ThreadingHTTPServer:
    from garrison.web.metrics import CONTENT_TYPE, render_metrics

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """Send the metrics; any other path is a 404."""
            if self.path.partition("?")[0] not in ("/", "/metrics"):
                self.send_error(404)
                return
            body = render_metrics(home)
            self.send_response(200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Do not log scrapes."""

    try:
        return ThreadingHTTPServer((_HOST, port), Handler)
    except OSError as error:
        raise Refused(f"cannot listen on port {port} of {_HOST}: {error.strerror}; pass another port, or 0 for "
                      "any free one") from error
