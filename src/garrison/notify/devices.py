"""Paired devices: an offer with a single-use code becomes a device with its own key.

`garrison serve --qr` leaves an offer in the home (`web/pairing.json`): the hash of its code, what the device may do,
and when it expires. The first client that sends the code in time registers a public key, and the offer is removed. The
private key never leaves the browser that made it; to get a session, the browser signs a challenge from the server
(`web.phones`). A device is `web/devices/ID.json`; removing that file ends all its sessions.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
import secrets
from typing import TYPE_CHECKING

from garrison.errors import NotFound, RecordError, Refused, UsageError
from garrison.notify.push import Subscription, decode_base64
from garrison.records import atomic, record
from garrison.records.record import Record
from garrison.system import processes
from garrison.system.terminal_text import clean
from garrison.values import replace

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path

    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey

WATCH, DECIDE = "watch", "decide"
"""What a device may do: watch only, or do everything that the page offers."""
OFFER_SECONDS = 120.0
"""How long the code of an offer is valid."""
TRIES = 20
"""Wrong codes after which an offer is withdrawn: a code has 58 bits, so it cannot be guessed."""
NAME_LENGTH = 40
_LETTERS = "ABCDEFGHJKMNPQRSTVWXYZ23456789"
"""Letters of a code; no two look alike."""
_ID = re.compile(r"[a-z2-7]{16}")
_POINT, _SIGNATURE = 65, 64
"""Bytes of an uncompressed point of P-256, and of a signature as WebCrypto writes it."""


class Device(Record):
    """A paired browser. `key` is its public point, base64url; `paired` the time, in UTC."""

    id: str
    name: str
    may: str
    key: str
    paired: str
    push: Subscription | None = None
    """Where its messages are sent; None while it wants none."""


class PairingOffer(Record):
    """What the next device that sends the code is granted. `expires` is in seconds since 1970."""

    code: str
    """SHA-256 of the code, in hexadecimal digits."""
    may: str
    expires: float
    tries: int = 0


class Serving(Record):
    """The server of a home: the origin of its page, and its process."""

    origin: str
    pid: int
    ticks: int

    @property
    def is_alive(self) -> bool:
        return processes.is_running(self.pid, self.ticks)


# ---- the running server


def write_serving(home: Path, origin: str, pid: int) -> None:
    """Record which address this process serves: links in messages lead there, and `serve --qr` offers it."""
    found = processes.probe(pid)
    atomic.make_directory(home / "web")
    atomic.write(_serving_path(home), record.encode(Serving(origin, pid, found.ticks if found else 0)))


def read_serving(home: Path) -> Serving | None:
    """Return the home's last server, which may have exited; None if there was none or its record is damaged."""
    try:
        data = atomic.read(_serving_path(home))
        return None if data is None else record.decode(Serving, data, _serving_path(home))
    except RecordError:
        return None


def _serving_path(home: Path) -> Path:
    return home / "web" / "serving.json"


# ---- pairing


def make_offer(home: Path, may: str, now: float) -> str:
    """Write an offer, replacing an earlier one; return its code. `may` is the most that a device can be granted."""
    code = "".join(secrets.choice(_LETTERS) for _ in range(12))
    with _locked(home):
        atomic.write(_offer_path(home), record.encode(PairingOffer(_hash(code), may, now + OFFER_SECONDS)))
    return code


def make_topic() -> str:
    """Return an unguessable suffix for a name."""
    return "".join(secrets.choice(_LETTERS) for _ in range(16)).lower()


def spell(code: str) -> str:
    """Return a code in groups, for reading and typing."""
    return "-".join(code[begin:begin + 4] for begin in range(0, len(code), 4))


def read_offer(home: Path) -> PairingOffer | None:
    """Return the current offer; None if it was used or has expired."""
    data = atomic.read(_offer_path(home))
    return None if data is None else record.decode(PairingOffer, data, _offer_path(home))


def withdraw_offer(home: Path) -> None:
    """Remove the offer, if there is one."""
    with _locked(home):
        _offer_path(home).unlink(missing_ok=True)


def pair(home: Path, code: str, name: str, may: str, key: str, *, now: float, at: str) -> Device:
    """Register a device for the code of the offer, which this uses up.

    Args:
        name: what the user calls it; a second device of that name becomes `NAME 2`.
        may: WATCH or DECIDE, at most what was offered.
        key: its public point, base64url.
        now: seconds since 1970.
        at: the same time in UTC, as text.

    Raises:
        Refused: there is no offer, or the code is wrong.
        UsageError: the name, right or key is invalid.
    """
    read_key(key)  # before the code is checked: a malformed request must not count as a wrong code
    shown = " ".join(clean(name).split())[:NAME_LENGTH]
    if not shown or may not in (WATCH, DECIDE):
        raise UsageError("give the device a name, and say whether it may watch or decide")
    with _locked(home):
        offer = read_offer(home)
        if offer is None or now >= offer.expires:
            _offer_path(home).unlink(missing_ok=True)
            raise Refused("this code was already used or has expired; run `garrison serve --qr` for a new one")
        if not hmac.compare_digest(offer.code, _hash(code)):
            _count_wrong(home, offer)
            raise Refused("this code is wrong; check it, or run `garrison serve --qr` for a new one")
        if may == DECIDE and offer.may != DECIDE:
            raise UsageError("this code only lets a device watch; `garrison serve --qr decide` lets it decide")
        _offer_path(home).unlink()  # before the device is written: a kill in between never pairs two
        taken = {device.name for device in list_devices(home)}
        number = 1
        while (unique := shown if number == 1 else f"{shown} {number}") in taken:
            number += 1
        device = Device(base64.b32encode(secrets.token_bytes(10)).decode().lower(), unique, may, key, at)
        _write(home, device)
    return device


def _count_wrong(home: Path, offer: PairingOffer) -> None:
    if offer.tries + 1 >= TRIES:
        _offer_path(home).unlink()
    else:
        atomic.write(_offer_path(home), record.encode(replace(offer, tries=offer.tries + 1)))


def _hash(code: str) -> str:
    letters = "".join(letter for letter in code.upper() if letter in _LETTERS)
    return hashlib.sha256(letters.encode()).hexdigest()


# ---- devices


def list_devices(home: Path) -> list[Device]:
    """Return the paired devices by name; a damaged record is left out."""
    found = []
    for file in sorted(atomic.list_names(_folder(home))):
        if file.endswith(".json"):
            try:
                found.append(read_device(home, file.removesuffix(".json")))
            except RecordError:
                continue
    return sorted((device for device in found if device is not None), key=lambda device: device.name)


def read_device(home: Path, id: str) -> Device | None:
    """Return a device; None if there is none with that id."""
    if not _ID.fullmatch(id):
        return None
    path = _folder(home) / f"{id}.json"
    data = atomic.read(path)
    return None if data is None else record.decode(Device, data, path)


def may(home: Path, id: str) -> str:
    """Return what a device may do now, '' if it is revoked or its record is damaged."""
    try:
        device = read_device(home, id)
    except RecordError:
        return ""
    return device.may if device is not None else ""


def revoke(home: Path, name: str) -> Device:
    """Revoke the device with a name or id; NotFound if there is none. Its sessions end; nothing is sent to it."""
    with _locked(home):
        device = next((each for each in list_devices(home) if name in (each.name, each.id)), None)
        if device is None:
            raise NotFound(f"there is no device {name!r:.60}; `garrison serve --devices` lists them")
        (_folder(home) / f"{device.id}.json").unlink()
        atomic.sync_directory(_folder(home))  # a power cut must not bring a revoked device back
    return device


def subscribe(home: Path, id: str, push: Subscription | None) -> None:
    """Record where messages to a device are sent, None to send none; NotFound if it was revoked."""
    with _locked(home):
        device = read_device(home, id)
        if device is None:
            raise NotFound("this device is not paired; run `garrison serve --qr` to pair it")
        _write(home, replace(device, push=push))


def forget_endpoint(home: Path, id: str, endpoint: str) -> None:
    """Forget the subscription of a device whose push service says that it has ended."""
    with _locked(home):
        device = read_device(home, id)
        # Read under the lock: the device may have subscribed again while the message was on its way.
        if device is not None and device.push is not None and device.push.endpoint == endpoint:
            _write(home, replace(device, push=None))


def _write(home: Path, device: Device) -> None:
    atomic.make_directory(_folder(home))
    atomic.write(_folder(home) / f"{device.id}.json", record.encode(device))


def _folder(home: Path) -> Path:
    return home / "web" / "devices"


def _offer_path(home: Path) -> Path:
    return home / "web" / "pairing.json"


def _locked(home: Path) -> AbstractContextManager[None]:
    return atomic.locked(atomic.make_directory(home / "web") / "devices.lock")


# ---- keys


def read_key(key: str) -> EllipticCurvePublicKey:
    """Return a public key; UsageError if it is not a point on P-256."""
    from cryptography.hazmat.primitives.asymmetric import ec

    try:
        data = decode_base64(key)
        if len(data) != _POINT:
            raise ValueError
        return ec.EllipticCurvePublicKey.from_encoded_point(ec.SECP256R1(), data)
    except ValueError:
        raise UsageError("the key of the device is not a P-256 public key") from None


def is_signed(device: Device, text: str, signature: str) -> bool:
    """Return whether a device has signed a text (ECDSA with SHA-256, both halves in 32 bytes, base64url)."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.asymmetric import ec, utils

    try:
        data = decode_base64(signature)
        if len(data) != _SIGNATURE:
            return False
        halves = (int.from_bytes(data[:32], "big"), int.from_bytes(data[32:], "big"))
        read_key(device.key).verify(utils.encode_dss_signature(*halves), text.encode(), ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError, UsageError):
        return False
    return True
