"""`garrison serve`: serve the web page of a home to every holder of its address, and pair devices with it.

The server is imported only here; the address is the only output on stdout, except for a QR code.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path
from threading import Thread
from urllib.parse import urlsplit

import click

from garrison import extras
from garrison.cli import completion
from garrison.cli.commands import Command
from garrison.cli.options import home_option
from garrison.cli.output import print_message, print_table
from garrison.cli.resolve import existing_run
from garrison.config import read_config
from garrison.directories import find_home
from garrison.errors import UsageError
from garrison.notify import devices
from garrison.run.notifications import send_held
from garrison.system.clock import wait_until

PORT = 8642
ASK = "ask"
"""Value of --qr alone: the device asks whether it may watch or decide."""
NO_HTTPS = """\
{origin} is plain HTTP, for which browsers create keys only on this machine: a phone cannot be paired there.
Two ways to HTTPS:
  tailscale cert NAME.ts.net   and   garrison serve --qr --listen ADDRESS --hostname NAME.ts.net \\
                                       --tls-cert NAME.ts.net.crt --tls-key NAME.ts.net.key
  a reverse proxy with a certificate   and   garrison serve --qr --hostname https://NAME
Without HTTPS, use ntfy: in its app, subscribe to a topic that is hard to guess, say garrison-{topic}, then
  (umask 077; echo ntfys://ntfy.sh/garrison-{topic} > {home}/notify-urls)
  urls_file = "{home}/notify-urls"   below [notify] in {home}/config.toml
  garrison notify test"""
LOOPBACK = """\
this address opens only on this machine (or through `ssh -L {port}:127.0.0.1:{port} HOST`); a phone needs HTTPS:
`tailscale cert` with --tls-cert and --tls-key, or a reverse proxy with --hostname https://NAME (docs/notify.md)"""


@click.command(cls=Command, renamed={"--name": "--hostname"}, examples=(
    ("garrison serve", "prints an address for the browser; Ctrl-C ends the server"),
    ("garrison serve --run crew-1 --read-only", "an address that can only watch"),
    ("garrison serve --port 0", "any free port"),
    ("garrison serve --qr decide", "a code for pairing a phone that may decide"),
    ("garrison serve --devices --revoke Phone", "forget a device"),
), option_groups={"Devices": ("qr", "devices_", "revoke"),
                  "Address": ("port", "address", "hostnames", "run", "read_only"),
                  "Security": ("tls_cert", "tls_key", "plain_http", "new_tokens"), "Forges": ("webhooks",)})
@click.option("--port", type=click.IntRange(0, 65535), default=PORT, show_default=True, help="0 for any free port.")
@click.option("--run", metavar="RUN", shell_complete=completion.runs, help="Run to show first.")
@click.option("--read-only", is_flag=True, help="Print an address that can only watch.")
@click.option("--listen", "address", default="127.0.0.1", show_default=True, metavar="ADDRESS",
              help="IP address to listen on; one reachable by others needs TLS or --plain-http.")
@click.option("--hostname", "hostnames", multiple=True, metavar="HOST",
              help="Name by which clients may reach it, or the address of a reverse proxy (repeatable).")
@click.option("--tls-cert", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Certificate (PEM).")
@click.option("--tls-key", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Its key (PEM).")
@click.option("--plain-http", is_flag=True, help="Serve others without TLS.")
@click.option("--new-tokens", is_flag=True, help="Create new tokens, which invalidates all earlier addresses.")
@click.option("--webhooks", is_flag=True,
              help="Receive webhooks of forges, so that runs with a pull request check the forge at once.")
@click.option("--qr", is_flag=False, flag_value=ASK, type=click.Choice([devices.WATCH, devices.DECIDE, ASK]),
              metavar="[watch|decide]",
              help="Show a code for pairing a phone within two minutes, and its maximum rights (default: it asks).")
@click.option("--devices", "devices_", is_flag=True, help="List the paired devices without serving.")
@click.option("--revoke", metavar="NAME", help="With --devices: forget a device; its sessions end.")
@click.option("--until", "pid", type=int, hidden=True, help="End with this process.")
@home_option
def serve(port: int, run: str | None, address: str, hostnames: tuple[str, ...], tls_cert: Path | None,
          tls_key: Path | None, pid: int | None, home: str | None, qr: str | None, revoke: str | None, *,
          devices_: bool, read_only: bool, plain_http: bool, new_tokens: bool, webhooks: bool) -> None:
    """Serve the home's web page to this machine: live runs, nodes, queue, deaths, costs, and the butler.

    The printed address contains a token that allows everything on the page.
    """
    extras.require("web", "`garrison serve`")
    from garrison.web.access import READ, WEBHOOK, WRITE, load_tokens
    from garrison.web.server import Endpoint
    from garrison.web.server import serve as serve_page
    from garrison.web.webhooks import Webhooks, load_secret, secret_path

    if revoke is not None and not devices_:
        raise UsageError(f"--revoke needs --devices: garrison serve --devices --revoke {revoke}")
    if devices_:
        show_devices(find_home(home), revoke)
        return
    if (tls_cert is None) != (tls_key is None):
        raise UsageError("pass both --tls-cert and --tls-key")
    state = find_home(home)
    if run is not None:
        existing_run(state, run)
    tls = (tls_cert, tls_key) if tls_cert and tls_key else None
    endpoint = Endpoint(address, port, hostnames, tls, plain_http).check()
    may = devices.WATCH if read_only else devices.DECIDE if qr == ASK else qr
    running = devices.read_serving(state) if qr else None
    if running is not None and running.is_alive and running.pid != os.getpid():
        pair_with(state, running.origin, str(may))
        return
    notify = read_config(state).notify()
    # in a thread: a service that does not answer must not delay the page
    Thread(target=send_held, args=(state, notify, dict(os.environ), time.time()), daemon=True).start()
    tokens = load_tokens(state, new=new_tokens)
    token = tokens[READ if read_only else WRITE]
    secret = load_secret(state) if webhooks else ""

    def print_address(bound_port: int) -> None:
        shown_run = f"&run={run}" if run else ""
        print(f"{endpoint.origin(bound_port)}/?token={token}{shown_run}", flush=True)
        if webhooks:
            print_message(f"webhooks: {endpoint.origin(bound_port)}{WEBHOOK}, with the secret in {secret_path(state)}")
        if qr:
            offer_pairing(state, endpoint.origin(bound_port), str(may))
        if sys.stdout.isatty():
            print_message("open it in a browser; Ctrl-C ends the server, not the runs")

    asyncio.run(serve_page(state, endpoint, tokens, print_address, until=pid, webhooks=Webhooks(state, secret)))


# ---- devices


def show_devices(home: Path, revoke: str | None) -> None:
    """List the paired devices, or forget one."""
    if revoke is not None:
        print_message(f"{devices.revoke(home, revoke).name} is revoked: its sessions end, and nothing is sent to it")
        return
    found = devices.list_devices(home)
    if not found:
        print_message("no device is paired; `garrison serve --qr` pairs one")
        return
    print_table(["NAME", "MAY", "MESSAGES", "PAIRED"], [
        [device.name, device.may, "on" if device.push else "off", device.paired[:16].replace("T", " ")]
        for device in found])


def offer_pairing(home: Path, origin: str, may: str) -> bool:
    """Show a code for a phone; print advice and return False if no address of the page can pair one."""
    kind = _reach(origin)
    if kind == "plain":
        topic = devices.make_topic()
        for line in NO_HTTPS.format(origin=origin, topic=topic, home=home).splitlines():
            click.echo(line, err=True)
        return False
    import segno

    code = devices.make_offer(home, may, time.time())
    segno.make(f"{origin}/#pair.{code}", error="m").terminal(out=sys.stdout, compact=True)
    sys.stdout.flush()
    rights = f"{devices.WATCH} or {devices.DECIDE}" if may == devices.DECIDE else may
    print_message(f"scan it within {devices.OFFER_SECONDS / 60:g} minutes, or open {origin} on the phone and type "
                  f"{devices.spell(code)}; it pairs one device, which may {rights}")
    if kind == "loopback":
        print_message(LOOPBACK.format(port=origin.rpartition(":")[2].strip("/")))
    return True


def _reach(origin: str) -> str:
    """Return where a page can create keys: `secure` everywhere, `loopback` on its machine, `plain` nowhere."""
    if origin.startswith("https://"):
        return "secure"
    host = urlsplit(origin).hostname or ""
    return "loopback" if host in ("localhost", "::1") or host.startswith("127.") else "plain"


def pair_with(home: Path, origin: str, may: str) -> None:
    """Show a code for the running server, and wait until a device has used it or it has expired."""
    known = {device.id for device in devices.list_devices(home)}
    if not offer_pairing(home, origin, may):
        return
    wait_until(lambda: devices.read_offer(home) is None, devices.OFFER_SECONDS, 0.2)
    paired = next((device for device in devices.list_devices(home) if device.id not in known), None)
    if paired is None:
        devices.withdraw_offer(home)
        print_message("no device was paired; the code has expired")
    else:
        print_message(f"paired {paired.name}, which may {paired.may}")
