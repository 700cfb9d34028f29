"""Webhook of notifications: send standard input, a JSON object, by POST to the address in its first line.

A separate program, so that the launcher neither waits for a server nor loads an HTTP client.
"""

from __future__ import annotations

import sys
import urllib.error
import urllib.request

SECONDS = 600
"""Longest wait for the server; the launcher ends it sooner, after `timeout` of `[notify]`."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: the notification goes to the configured address and nowhere else."""

    def redirect_request(self, *_: object) -> None:
        """Return no further request."""


def send(address: str, body: bytes) -> str:
    """Send a body; return '' if the server accepted it, else what happened in one line."""
    request = urllib.request.Request(address, body, {"Content-Type": "application/json", "User-Agent": "garrison"})
    try:
        with urllib.request.build_opener(_NoRedirect).open(request, timeout=SECONDS):
            return ""
    except urllib.error.HTTPError as error:
        return f"the webhook answered {error.code} {error.reason}"
    except (OSError, ValueError) as error:
        return f"the webhook cannot be reached: {error}"


# A text goes to standard error, with exit code 1; None is a success.
if __name__ == "__main__":
    sys.exit(send(sys.stdin.buffer.readline().decode().strip(), sys.stdin.buffer.read()) or None)
