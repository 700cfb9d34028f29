"""Web Push: subscriptions of browsers, and the key that signs pushes. Pure except for that key.

An endpoint comes from a client, and this server would send requests to it. So it must be an address of a browser
vendor's push service, with TLS on the usual port: it cannot name anything on this machine or its network.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from garrison.errors import UsageError
from garrison.records import atomic
from garrison.records.record import Record

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = frozenset({"fcm.googleapis.com", "updates.push.services.mozilla.com", "web.push.apple.com"})
"""Push services of Chromium browsers, Firefox and Safari."""
SUFFIXES = (".push.apple.com", ".notify.windows.com")
"""Suffixes of the host names of Safari's and Windows' push services, which have one host per region."""
LONGEST = 1000
"""Characters of an endpoint."""
_POINT, _SECRET = 65, 16
"""Bytes of the key and of the secret of a subscription (RFC 8291)."""


class Subscription(Record):
    """Where pushes to a browser go, and what they are encrypted with: its point and secret, base64url."""

    endpoint: str
    p256dh: str
    auth: str

    def check(self) -> Subscription:
        """Return itself; UsageError for an endpoint elsewhere or invalid keys."""
        check_endpoint(self.endpoint)
        if _length(self.p256dh) != _POINT or _length(self.auth) != _SECRET:
            raise UsageError("the subscription has no keys of Web Push")
        return self


def check_endpoint(endpoint: str) -> None:
    """Raise UsageError unless the address belongs to a browser vendor's push service."""
    try:
        parts = urlsplit(endpoint)
        # Parsers disagree about backslashes and spaces: the request might go to another host than the one checked.
        is_plain = (parts.scheme == "https" and parts.port in (None, 443) and not parts.username and not parts.password
                    and not parts.fragment and endpoint.isascii() and endpoint.isprintable()
                    and not any(letter in " \\" for letter in endpoint))
    except ValueError:
        is_plain = False
    host = (parts.hostname or "") if is_plain else ""
    if len(endpoint) > LONGEST or not (host in HOSTS or host.endswith(SUFFIXES)):
        raise UsageError("pushes go only through the services of Chrome, Edge, Firefox and Safari; this browser names "
                         f"{host or 'no address of one'!r:.80}")


def _length(text: str) -> int:
    try:
        return len(decode_base64(text.rstrip("=")))
    except ValueError:
        return -1


def decode_base64(text: str) -> bytes:
    """Decode base64url without padding; ValueError for anything else."""
    return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)


def key_path(home: Path) -> Path:
    return home / "web" / "push-key.pem"


def public_key(home: Path) -> str:
    """Return the public point, base64url, of the key that signs this home's pushes; create it on first use."""
    from cryptography.hazmat.primitives import serialization as forms
    from cryptography.hazmat.primitives.asymmetric import ec

    path = key_path(home)
    with atomic.locked(atomic.make_directory(path.parent) / "devices.lock"):
        data = atomic.read(path)
        if data is None:
            made = ec.generate_private_key(ec.SECP256R1())
            data = made.private_bytes(forms.Encoding.PEM, forms.PrivateFormat.PKCS8, forms.NoEncryption())
            atomic.write(path, data)
    key = forms.load_pem_private_key(data, None)
    point = key.public_key().public_bytes(forms.Encoding.X962, forms.PublicFormat.UncompressedPoint)
    return base64.urlsafe_b64encode(point).decode().rstrip("=")
