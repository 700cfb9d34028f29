"""Requests by the library `requests`, for an API without a client library that can be used here."""

from __future__ import annotations

from garrison.forge.errors import Unreachable
from garrison.forge.session import Answer, Request

SOCKET_TIMEOUT = 10.0


class RequestsTransport:
    """One connection pool to one API."""

    def __init__(self, base: str, headers: dict[str, str]) -> None:
        import requests

        self._base = base
        self._pool = requests.Session()
        self._pool.headers.update({"User-Agent": "garrison", "Accept": "application/json", **headers})
        # without this, ~/.netrc would replace the token
        self._pool.auth = lambda request: request

    def send(self, request: Request, timeout: float) -> Answer:
        """Send a request; Unreachable if no answer came."""
        import requests

        try:
            answer = self._pool.request(
                request.method, self._base + request.path, params=dict(request.query), json=request.body,
                headers=dict(request.headers), timeout=min(timeout, SOCKET_TIMEOUT), allow_redirects=False)
        except (requests.RequestException, OSError) as error:
            raise Unreachable(f"{request.method} {request.path}: {type(error).__name__}") from None
        headers = {name.lower(): value for name, value in answer.headers.items()}
        return Answer(answer.status_code, headers, answer.content)
