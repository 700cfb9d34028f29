"""Paired devices at the server: pairing, sessions for signatures, where pushes go, and buttons of messages.

A device has no token. It pairs once, with a code that `garrison serve --qr` has shown. From then on it asks for a
challenge, signs it together with the origin of the page, and gets a session as any browser does, except that the
session names the device. A challenge can be used once, within a minute, and does not survive a restart of the server.
"""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
import sys
import time
from collections import OrderedDict
from typing import TYPE_CHECKING

from garrison.errors import GarrisonError, NotFound, Refused, UsageError
from garrison.notify import buttons, devices, push
from garrison.records.record import read_foreign
from garrison.system.clock import SystemClock
from garrison.system.terminal_text import clean
from garrison.web import access, actions
from garrison.web.responses import body_of, json_answer

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from starlette.requests import Request
    from starlette.responses import Response

SCOPES = {devices.WATCH: access.READ, devices.DECIDE: access.WRITE}
"""What a device may do → scope of its sessions."""
CHALLENGE_SECONDS = 60.0
_CHALLENGES = 1000
"""Most challenges that wait for a signature; the oldest go first."""


def scope_of_device(home: Path, id: str) -> str:
    """Return the scope of a device's sessions now, '' if it is revoked."""
    return SCOPES.get(devices.may(home, id), "")


class Phones:
    """Requests of the page about paired devices."""

    def __init__(self, home: Path, rules: access.Rules) -> None:
        self._home, self._rules = home, rules
        self._challenges = OrderedDict[str, tuple[str, float]]()
        """Challenge → the device that got it, and when it ends (monotonic)."""

    def name_of(self, request: Request) -> str:
        """Return the channel of an answer by this request."""
        device = self._device_of(request)
        return f"the device {device.name}" if device is not None else "the page"

    def _device_of(self, request: Request) -> devices.Device | None:
        id = request.scope["garrison.device"]
        return devices.read_device(self._home, id) if id else None

    async def pair(self, request: Request) -> Response:
        """Register a device for the code that it sends."""
        body = await body_of(request)
        code, name, may, key = (_text(body, each) for each in ("code", "name", "may", "key"))
        made = await asyncio.to_thread(lambda: devices.pair(
            self._home, code, name, may, key, now=time.time(), at=SystemClock().utc()))
        print(clean(f"garrison serve: paired {made.name}, which may {made.may}; `garrison serve --devices` lists all"),
              file=sys.stderr, flush=True)
        return json_answer({"ok": True, "device": made.id, "name": made.name, "may": made.may})

    async def challenge(self, request: Request) -> Response:
        """Send a device the challenge to sign; only a valid signature reveals whether it is paired."""
        device = _text(await body_of(request), "device")
        made = secrets.token_urlsafe(24)
        self._challenges[made] = (device, time.monotonic() + CHALLENGE_SECONDS)
        while len(self._challenges) > _CHALLENGES:
            self._challenges.popitem(last=False)
        return json_answer({"ok": True, "challenge": made})

    async def begin_session(self, request: Request) -> Response:
        """Exchange a signed challenge for a session."""
        body = await body_of(request)
        id, challenge, signature = (_text(body, each) for each in ("device", "challenge", "signature"))
        asked, until = self._challenges.pop(challenge, ("", 0.0))  # any try uses it up
        if asked != id or time.monotonic() >= until:
            raise Refused("this challenge was used or has expired; reload the page")
        device = devices.read_device(self._home, id)
        text = signed_text(request.headers.get("origin", ""), challenge)
        if device is None or not await asyncio.to_thread(devices.is_signed, device, text, signature):
            raise NotFound("this device is not paired, or was revoked: `garrison serve --qr` pairs it")
        now = int(time.time())
        given = access.Pass(access.PassKind.TICKET, SCOPES[device.may], now, now, device.id)
        made = self._rules.issue_session(given, now)
        assert made is not None  # it has just logged in
        return json_answer({"ok": True, "session": made[0], "seconds": made[1]})

    async def describe(self, request: Request) -> Response:
        """Describe this device and what it needs to subscribe to pushes; empty for a browser that is not paired."""
        device = self._device_of(request)
        if device is None:
            return json_answer({"name": ""})
        has_extra = importlib.util.find_spec("apprise") is not None
        key = await asyncio.to_thread(push.public_key, self._home) if has_extra else ""
        return json_answer({"name": device.name, "may": device.may, "pushes": device.push is not None, "key": key})

    async def subscribe(self, request: Request) -> Response:
        """Record where messages to this device go; null: it wants none."""
        body, device = await body_of(request), request.scope["garrison.device"]
        if not device:
            raise Refused("only a paired device gets messages: pair this browser with `garrison serve --qr`")
        given = body.get("subscription")
        try:
            subscription = None if given is None else read_foreign(push.Subscription, given).check()
        except ValueError as error:
            raise UsageError(f"this is not a subscription to Web Push: {error}") from None
        await asyncio.to_thread(devices.subscribe, self._home, device, subscription)
        return json_answer({"ok": True, "message": "messages are on" if subscription else "messages are off"})

    async def press_button(self, request: Request) -> Response:
        """Record the answer of a button, as the command does, to its one question."""
        pressed, answer = await asyncio.to_thread(
            buttons.press, self._home, request.path_params["token"], time.time())
        words = actions.answered_through(actions.NODE["answer"](pressed.run, pressed.node, answer),
                                         "a button of a message", pressed.question)
        try:
            message = await actions.run_command(self._home, words)
        except GarrisonError as error:
            raise Refused(f"not recorded: {error}") from None
        return json_answer({"ok": True, "message": message})


def signed_text(origin: str, challenge: str) -> str:
    """Return the text that a device signs: with the origin, so that no other page can relay a signature."""
    return f"garrison device\n{origin}\n{challenge}"


def _text(body: Mapping[str, object], key: str) -> str:
    return actions.text_of(body, key, required=False, most=300)
