"""Services: send one notification, as JSON on standard input, to the services and devices of a home.

A separate program (`python -m garrison.notify.services HOME`), so that a service that hangs does not delay the run: the
launcher kills it after `timeout` seconds. apprise, the extra `notify`, does the sending. Addresses of services contain
secrets; they come from a file or a variable, and never appear in a command line or in our messages. No apprise
configuration is read, neither from its usual places nor from a server, and no plug-in given by a path.

A paired device gets its message by Web Push, encrypted, through its browser vendor's push service: run, node and kind
of what waits, and the text only with `push_text`. Its endpoint is checked again before it is used.
"""

from __future__ import annotations

import json
import logging
import os
import re
import stat
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO
from urllib.parse import quote, urlencode, urlsplit

from garrison import extras
from garrison.config import NotifyConfig, read_config
from garrison.errors import GarrisonError, UsageError
from garrison.notify import buttons, devices
from garrison.notify.push import check_endpoint, key_path, public_key
from garrison.records.record import from_data
from garrison.run.notifications import Notification, plain
from garrison.system.clock import from_iso
from garrison.system.environment import NOTIFY_URLS
from garrison.system.terminal_text import clean
from garrison.values import Value

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from apprise import AppriseAsset, NotifyBase

PUSH_SECONDS = 86_400
"""How long a push service keeps a message for a device that is off."""
_SECRET = 4
"""Length from which a part of an address is treated as a secret."""
_TEST = "test"
"""Event of the message of `garrison notify test`."""


class Delivered(Value):
    """Result of sending a message to one service or device."""

    name: str
    ok: bool


# ---- which services


def read_urls(config: NotifyConfig, environ: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return (source, address) of each service; '#' starts a comment.

    Raises UsageError if the file is missing or readable by others, or a line is not an address.
    """
    found = [(f"${NOTIFY_URLS}", word) for word in environ.get(NOTIFY_URLS, "").split()]
    if config.urls_file:
        path = Path(config.urls_file)
        try:
            if stat.S_IMODE(path.stat().st_mode) & 0o077:
                raise UsageError(f"{path} contains secrets, but other users can read it: chmod 600 {path}")
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{path}, the urls_file of [notify], cannot be read: "
                             f"{getattr(error, 'strerror', None) or error}") from None
        found += [(f"{path}:{number}", line.strip()) for number, line in enumerate(text.splitlines(), 1)
                  if line.strip() and not line.strip().startswith("#")]
    for place, line in found:
        if "://" not in line or any(letter.isspace() for letter in line):
            raise UsageError(f"{place}: each line is one address of a service, as in ntfys://ntfy.sh/TOPIC; "
                             "configurations of apprise, and plug-ins by path, are not read")
    return found


class Discreet(logging.StreamHandler[TextIO]):
    """Prints what apprise logs about a delivery, without parts of addresses that may be secrets."""

    def __init__(self, urls: Iterable[str]) -> None:
        super().__init__(sys.stdout)
        # Longest first: replacing a shorter one that is part of a longer one would leave the rest.
        self._secrets = sorted({part for url in urls for part in re.split(r"[/?&=@:]+", url) if len(part) >= _SECRET},
                               key=len, reverse=True)

    def format(self, record: logging.LogRecord) -> str:
        """Return a line without secrets."""
        text = super().format(record)
        for secret in self._secrets:
            text = text.replace(secret, "…")
        return clean(text)


def open_service(place: str, url: str, asset: AppriseAsset, more: Mapping[str, str]) -> NotifyBase:
    """Return the service of an address, which no message repeats; UsageError if apprise has none for it.

    Args:
        place: where the address was found.
        url: the address.
        asset: settings of apprise.
        more: parameters that only ntfy takes.
    """
    import apprise
    from apprise.plugins import url_to_dict

    told = url_to_dict(url)
    if told and told["schema"] in ("ntfy", "ntfys"):
        told |= more
    service = apprise.Apprise.instantiate(told, asset=asset) if told and told["schema"] != "vapid" else None
    if service is None:
        raise UsageError(f"{place}: apprise has no service for this address; its documentation lists the formats. "
                         "Configuration URLs are not supported; pair devices with `garrison serve --qr`")
    return service


def _asset() -> AppriseAsset:
    """Return settings of apprise: nothing is stored, followed elsewhere, generated or replaced in texts."""
    from apprise import AppriseAsset

    return AppriseAsset(app_id="garrison", app_desc="garrison", app_url="", storage_mode="memory", pem_autogen=False,
                        pgp_autogen=False, http_redirects=False, interpret_emojis=False, interpret_escapes=False,
                        image_url_mask="", image_url_logo="", allow_templates=False)


# ---- texts


def link_to(home: Path, config: NotifyConfig, run: str, notification: Notification) -> str:
    """Return the URL that opens what a notification is about; '' if no page was ever served."""
    serving = devices.read_serving(home)
    origin = config.link.rstrip("/") or (serving.origin if serving is not None else "")
    return f"{origin}{path_to(run, notification)}" if origin else ""


def path_to(run: str, notification: Notification) -> str:
    """Return its path within the page; on a phone, a node's panel would cover its question. Pure."""
    return f"/?{urlencode({'run': run, 'notice': notification.key}, quote_via=quote)}"


def describe_push(notification: Notification) -> str:
    """Return the text of a push, without anything that an agent wrote. Pure."""
    node, event = notification.node or "The run", notification.event
    kind = notification.key.partition(":")[0]
    words = {"question": f"{node} asks you", "gate": f"{node} waits for you",
             "review": f"{node} waits for your approval", "pull_request": "The pull request waits for you"}
    ends = {"failed": "The run has failed", "done": "The run is done", "stopped": "The run has stopped"}
    others = {"escalate": f"{node} is parked", "wait": f"{node} waits and continues by itself", _TEST: "This is a test"}
    return words.get(kind) or ends.get(event) or others.get(event, f"{node} needs you")


def ntfy_actions(home: Path, config: NotifyConfig, run: str, notification: Notification, link: str, now: float) -> str:
    """Return the header with the buttons of an ntfy message; '' for none.

    Buttons need a question with a few reversible answers, and a page that the phone can reach.
    """
    origin = "{0.scheme}://{0.netloc}".format(urlsplit(link))
    answers = notification.options
    if not (config.buttons and link and notification.question and 0 < len(answers) <= buttons.MOST):
        return ""
    buttons.sweep(home, now)
    until = now + buttons.LIFE_SECONDS
    if notification.until:
        until = min(until, from_iso(notification.until))
    tokens = buttons.make(home, run, notification.node, notification.question, answers, until)
    return json.dumps([{"action": "http", "label": plain(answer)[:40], "url": f"{origin}/button/{token}",
                        "method": "POST", "clear": True} for answer, token in tokens.items()])


# ---- sending


def send(home: Path, config: NotifyConfig, environ: Mapping[str, str], run: str, notification: Notification,
         ) -> list[Delivered]:
    """Send a notification to every service and device concurrently; return the result of each.

    Raises:
        Refused: the extra is not installed, but a target is configured.
        UsageError: an address or a setting is invalid.
    """
    urls = read_urls(config, environ)
    paired = [device for device in devices.list_devices(home) if device.push is not None]
    if not urls and not paired:
        return []
    extras.require("notify", "a notice")
    import apprise

    link = link_to(home, config, run, notification)
    actions = ntfy_actions(home, config, run, notification, link, time.time()) if urls else ""
    more = {name: value for name, value in (("click", link), ("actions", actions)) if value}
    logger = logging.getLogger("apprise")  # it would print whole addresses
    logger.propagate, logger.handlers = False, [logging.NullHandler()]
    asset = _asset()
    services = [(_name_of(service), service) for place, url in urls
                for service in (open_service(place, url, asset, more),)]
    logger.handlers = [Discreet(url for _, url in urls)]
    body = "\n".join(filter(None, (plain(notification.text), link)))

    def tell(service: NotifyBase) -> bool:
        crowd = apprise.Apprise(asset=asset)
        crowd.add(service)
        return bool(crowd.notify(body=body, title=f"garrison: {plain(run)}", body_format=apprise.NotifyFormat.TEXT))

    with ThreadPoolExecutor(max(1, len(services) + len(paired))) as pool:
        told = [(name, pool.submit(tell, service)) for name, service in services]
        pushed = [(device.name, pool.submit(push, home, config, device, run, notification)) for device in paired]
        return [Delivered(name, future.result()) for name, future in [*told, *pushed]]


def _name_of(service: NotifyBase) -> str:
    """Return the name of a service, without its address."""
    return str(service.service_name or type(service).__name__)


def push(home: Path, config: NotifyConfig, device: devices.Device, run: str, notification: Notification) -> bool:
    """Push a notification to a device; return whether its push service took it.

    An endpoint that the push service no longer knows is forgotten.
    """
    from apprise.plugins.vapid import NotifyVapid

    class Push(NotifyVapid):
        """A push that waits for a sleeping device; with apprise's limit of a minute it would be lost."""

        template_args = {**NotifyVapid.template_args,  # noqa: RUF012
                         "ttl": {**NotifyVapid.template_args["ttl"], "max": PUSH_SECONDS}}

    target = device.push
    assert target is not None
    check_endpoint(target.endpoint)
    public_key(home)  # exists, since a device subscribed with it; the service refuses a new one
    service = Push(subscriber=config.push_contact, targets=[device.id], keyfile=str(key_path(home)), ttl=PUSH_SECONDS,
                   asset=_asset())
    service.subscriptions[device.id] = {"endpoint": target.endpoint,
                                        "keys": {"p256dh": target.p256dh, "auth": target.auth}}
    message = {"title": f"garrison: {run}", "body": describe_push(notification), "tag": f"{run} {notification.key}",
               "path": path_to(run, notification)}
    if config.push_text:
        message["body"] = plain(notification.text)
    ok = bool(service.send(json.dumps(message)))
    if device.id not in service.subscriptions:
        devices.forget_endpoint(home, device.id, target.endpoint)
    return ok


def main(argv: list[str]) -> int:
    """Send the notification on standard input; print a line for each service and device, and return the exit code."""
    home = Path(argv[0])
    try:
        given: dict[str, Any] = json.loads(sys.stdin.buffer.read())
        notification = from_data(Notification, {name: value for name, value in given.items() if name != "run"})
        sent = send(home, read_config(home).notify(), os.environ, str(given["run"]), notification)
    except (GarrisonError, ValueError) as error:
        print(error)
        return 1
    for each in sent:
        print(f"{each.name}: {'sent' if each.ok else 'not sent'}")
    return 0 if all(each.ok for each in sent) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
