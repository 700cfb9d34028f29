"""`garrison preview`: show a node's server in a browser."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

import click

from garrison.cli import completion, resolve
from garrison.cli.commands import Command
from garrison.cli.logs import has_ended
from garrison.cli.options import home_option, run_option
from garrison.cli.output import print_message, print_table
from garrison.errors import GarrisonError, Refused, UsageError
from garrison.preview.on_host import FarEnd, NodeAnywhere
from garrison.preview.own_server import OwnServer, describe_start
from garrison.preview.service import (
    Address,
    NodeAtWork,
    OpenPreview,
    Preview,
    PreviewSource,
    PreviewTarget,
    describe,
    list_previews,
    rules_of,
)
from garrison.processes.runtime import Runtime
from garrison.records.run import RunFiles, list_runs
from garrison.records.store import Store
from garrison.system.machine import garrison_argv

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_BACKGROUND_SECONDS = 60.0
"""Seconds within which a background preview must open."""
_HOST_SECONDS = 5.0
"""Seconds that the list waits for a node's host."""


@click.command(cls=Command, examples=(
    ("garrison preview web", "the only port on which node web listens; Ctrl-C closes it"),
    ("garrison preview web 5173 --open", "port 5173, in the browser"),
    ("garrison preview db 5432 --tcp", "raw bytes, for psql"),
    ("garrison preview web --attempt 2 --command 'npm run dev'", "a server at the commit of attempt 2"),
    ("garrison preview --list", "all ports of nodes at work, and open previews"),
), option_groups={"Server": ("attempt", "command"), "Address": (
    "outer_port", "as_localhost", "tcp", "listen", "hostname", "tls_cert", "tls_key")})
@click.argument("node", required=False, shell_complete=completion.nodes)
@click.argument("port", required=False, type=click.IntRange(1, 65535))
@run_option
@click.option("--list", "show_list", is_flag=True, help="List the ports of nodes at work, and open previews.")
@click.option("--open", "open_browser", is_flag=True, help="Open it in the browser.")
@click.option("--background", is_flag=True, help="Print the address and return; it is closed when the node ends.")
@click.option("--attempt", type=click.IntRange(1), metavar="K", help="With --command: the commit of this attempt "
              "(default: the latest).")
@click.option("--command", metavar="CMD", help="Start this server at the node's commit, in its own sandbox.")
@click.option("--outer-port", type=click.IntRange(0, 65535), default=0, metavar="PORT",
              help="Port here (default: any free one).")
@click.option("--as-localhost", is_flag=True, help="Show it as localhost, for a server that requires that name; its "
              "cookies are then shared with every server of this machine.")
@click.option("--tcp", is_flag=True, help="Forward bytes, not HTTP.")
@click.option("--listen", default="127.0.0.1", metavar="ADDRESS", help="Address to listen on; for other machines "
              "--hostname and TLS are required, and access needs a single-use ticket.")
@click.option("--hostname", default="", metavar="NAME", help="Name of this machine for others.")
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="Certificate.")
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="FILE",
              help="Its key.")
@click.option("--relay", type=click.Path(path_type=Path), hidden=True)  # the remote end of a preview on another machine
@home_option
def preview(node: str | None, port: int | None, run: str | None, show_list: bool, open_browser: bool, background: bool,
            attempt: int | None, command: str | None, outer_port: int, as_localhost: bool, tcp: bool, listen: str,
            hostname: str, tls_cert: Path | None, tls_key: Path | None, relay: Path | None,
            home: str | None) -> None:
    """Show the server of NODE on port PORT at a separate address of this machine.

    It waits until the server listens, and ends with the node. Default PORT: the node's only one.
    """
    store = resolve.open_store(home)
    if show_list:
        _print_list(store, run)
        return
    if relay is not None:
        there = PreviewTarget(node or "", run or "")
        asyncio.run(FarEnd(NodeAtWork(store, there, lambda: _why_agent_over(store, there)), relay).run())
        return
    resolve.await_nodes(store, run, _BACKGROUND_SECONDS)
    if node is None:
        node, run = resolve.only_node(store, run)
    if attempt is not None and command is None:
        raise UsageError("--attempt needs --command: the programs of an attempt that is over have ended")
    address = Address(outer_port, listen, hostname, _tls(tls_cert, tls_key), as_localhost=as_localhost, tcp=tcp).check()
    wanted = PreviewTarget(node, resolve.run_of_node(store, node, run), port or 0)
    if background:
        print(_open_in_background(store.home, wanted, address, sys.argv[1:]), flush=True)
        return

    def opened(url: str) -> None:
        print(url, flush=True)
        if as_localhost:
            print_message("note: cookies of localhost are shared by all servers of this machine")
        if open_browser:
            click.launch(url)

    subject: PreviewSource
    if command is None:
        subject = NodeAnywhere(store, wanted, lambda: _why_over(store, wanted))
    else:
        subject = OwnServer(Runtime.real(store.home), wanted.run, node, attempt or 0, command, os.getpid())
        print_message(describe_start(subject, command))
    with closing(subject):
        asyncio.run(Preview(store.home, wanted, address, subject, print_message).run(opened))


def _tls(cert: Path | None, key: Path | None) -> tuple[Path, Path] | None:
    if cert is not None and key is not None:
        return cert, key
    if cert is not None or key is not None:
        raise UsageError("pass both --tls-cert and --tls-key")
    return None


def _why_over(store: Store, wanted: PreviewTarget) -> str:
    """Return why no program of a node will run any more, '' if one may."""
    node, run = wanted.node, wanted.run
    try:
        if has_ended(store, run, node):
            return f"{node} has ended; {wanted.hint}"
    except GarrisonError:
        return f"run {run} is gone"
    return _why_agent_over(store, wanted)


def _why_agent_over(store: Store, wanted: PreviewTarget) -> str:
    """Return why the agent of a node's latest attempt no longer runs, '' if it may."""
    node, files = wanted.node, RunFiles(store.home, wanted.run)
    attempt = files.latest_attempt(node)
    if attempt and (files.attempt(node, attempt) / "result.json").exists():
        return f"the agent of {node} has ended, and so have its servers; {wanted.hint}"
    return ""


def _open_in_background(home: Path, wanted: PreviewTarget, address: Address, words: Sequence[str]) -> str:
    """Return the address of an open or newly started preview; Refused with its last line if it fails."""
    if not address.is_loopback:
        raise UsageError("--background cannot print tickets; leave it out with --listen")
    if (known := _find_open(home, wanted, address)) is not None:
        return known.url
    argv = [*garrison_argv(), *(word for word in words if word != "--background")]
    with tempfile.TemporaryFile() as said:  # with a pipe, its first line after our exit would end it
        # in a new session: the preview outlives this terminal and is not reached by Ctrl-C here
        child = subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=said,
                                 start_new_session=True)
        until = time.monotonic() + _BACKGROUND_SECONDS
        while time.monotonic() < until and child.poll() is None:
            found = next((each for each in list_previews(home, wanted.run) if each.pid == child.pid), None)
            if found is not None:
                return found.url
            time.sleep(0.05)
        child.terminate()
        child.wait()
        said.seek(0)
        lines = said.read().decode(errors="replace").strip().splitlines()
    raise Refused(lines[-1].removeprefix("garrison: ") if lines else "the preview did not open")


def _find_open(home: Path, wanted: PreviewTarget, address: Address) -> OpenPreview | None:
    rules = rules_of(address, wanted, 0, 0)
    begin = rules.origin.removesuffix("0") if rules is not None else f"{address.shown}:"
    found = [each for each in list_previews(home, wanted.run) if each.node == wanted.node
             and wanted.port in (0, each.port) and each.url.startswith(begin)]
    return found[0] if len(found) == 1 else None


def _print_list(store: Store, run: str | None) -> None:
    """Print the ports of nodes at work, and open previews."""
    rows = [row for each in ([resolve.existing_run(store.home, run)] if run else list_runs(store.home))
            for row in _rows(store, each)]
    print_table(["NODE", "RUN", "PORT", "PREVIEW"], rows, "no node listens on a port, and no preview is open")


def _rows(store: Store, run: str) -> Iterator[list[str]]:
    """Yield node, run, port and address of each port of a run's nodes."""
    shown = list(list_previews(store.home, run))
    for node in resolve.nodes_of(store.home, run):
        with closing(NodeAnywhere(store, PreviewTarget(node, run), str)) as subject:
            tree = subject.look_once(_HOST_SECONDS)
        own = [each for each in shown if each.node == node]
        for listener in tree.listeners if tree is not None else ():
            urls = [each.url for each in own if each.port == listener.port]
            yield [node, run, *describe((listener,)), ", ".join(urls)]
        known = {listener.port for listener in tree.listeners} if tree is not None else set()
        for each in own:
            if each.port not in known:
                yield [node, run, str(each.port), each.url]
