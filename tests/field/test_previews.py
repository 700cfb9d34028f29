"""Previews of a Vite project and of a Django project with PostgreSQL, as a user runs them."""

from __future__ import annotations

import base64
import hashlib
import http.client
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from support import wait_for
from toolchains import Missing, open_registries
from world import HOME, World, Worlds

pytestmark = pytest.mark.slow
POSTGRES = next(iter(sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)), None)
VITE = {
    "package.json": '{"name": "page", "private": true, "type": "module", "devDependencies": {"vite": "^6"}}\n',
    "index.html": '<!doctype html><title>page</title><script type="module" src="/main.js"></script>\n',
    "main.js": "document.title = 'one'\nimport.meta.hot?.accept()\n", ".gitignore": "node_modules/\n"}
DJANGO = {
    "requirements.txt": "django==5.2.8\npsycopg[binary]==3.2.12\n", ".gitignore": ".venv/\n__pycache__/\n",
    "manage.py": """\
import os
import sys

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "site_settings")
from django.core.management import execute_from_command_line

execute_from_command_line(sys.argv)
""",
    "site_settings.py": """\
import os
from urllib.parse import urlsplit

url = urlsplit(os.environ["DATABASE_URL"])
DATABASES = {"default": {"ENGINE": "django.db.backends.postgresql", "NAME": url.path[1:], "USER": url.username,
                         "HOST": url.hostname, "PORT": url.port}}
SECRET_KEY, DEBUG, ROOT_URLCONF, INSTALLED_APPS = "not secret", True, "site_settings", ["notes"]
MIDDLEWARE = ["django.middleware.common.CommonMiddleware", "django.middleware.csrf.CsrfViewMiddleware"]
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"


def show(request):
    from django.http import HttpResponse, HttpResponseRedirect
    from django.middleware.csrf import get_token
    from notes.models import Note

    if request.method == "POST":
        Note.objects.create(text=request.POST["text"])
        return HttpResponseRedirect(request.build_absolute_uri("/"))
    return HttpResponse(f"token={get_token(request)} notes={list(Note.objects.values_list('text', flat=True))}")


def urlpatterns():
    from django.urls import path

    return [path("", show)]


urlpatterns = urlpatterns()
""",
    "notes/__init__.py": "", "notes/migrations/__init__.py": "",
    "notes/models.py": "from django.db import models\n\n\nclass Note(models.Model):\n    text = models.TextField()\n",
    "notes/migrations/0001_initial.py": """\
from django.db import migrations, models


class Migration(migrations.Migration):
    initial = True
    operations = [migrations.CreateModel("Note", [("id", models.BigAutoField(primary_key=True, serialize=False)),
                                                  ("text", models.TextField())])]
""",
    "notes/tests.py": """\
from django.test import TestCase

from notes.models import Note


class Notes(TestCase):
    def test_a_note_is_kept(self):
        Note.objects.create(text="x")
        self.assertEqual(Note.objects.count(), 1)
""",
}


def make(home: World, name: str, files: Mapping[str, str], before: str = ":") -> str:
    """Make a repository; return its path inside."""
    checkout = HOME / "code" / name
    for path, text in files.items():
        place = home.outside(checkout / path)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
    home.own()
    home.shell(checkout, f"git init -q; {before}; git add -A; git commit -qm Begin")
    return str(checkout)


@contextmanager
def previewed(home: World, checkout: str, port: int, *words: str) -> Iterator[str]:
    """Start a run with a server and yield the address of its preview; stop the run at the end."""
    started = home.run(checkout, "garrison", "run", "serve it", *words, "--detach", seconds=300)
    assert started.returncode == 0, f"{started.stderr}\n{home.logs()}"
    try:
        opened = home.run(checkout, "garrison", "preview", "serve_it", str(port), "--background", seconds=300)
        while opened.returncode and "does not listen" in opened.stderr:  # its set-up fetches packages
            opened = home.run(checkout, "garrison", "preview", "serve_it", str(port), "--background", seconds=300)
        assert opened.returncode == 0, f"{opened.stderr}\n{home.logs()}"
        yield opened.stdout.strip()
    finally:
        stopped = home.run(checkout, "garrison", "stop", "serve-it-1", seconds=120)
    assert stopped.returncode == 0, stopped.stderr
    wait_for("nothing of it runs", lambda: not home.garrisons(), 60)


def ask(url: str, path: str = "/", method: str = "GET", body: str = "", **headers: str,
        ) -> tuple[int, http.client.HTTPMessage, str]:
    """Send a request to a preview as a browser does, with its name resolved to this machine."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection("127.0.0.1", place.port or 0, timeout=60)
    try:
        given = {"Host": place.netloc, **{name.replace("_", "-"): value for name, value in headers.items()}}
        connection.request(method, path, body.encode() or None, given)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read().decode()
    finally:
        connection.close()


def check_names(url: str) -> None:
    """Check that neither a rebound name nor a page of another site reaches the server."""
    port = urlsplit(url).port
    for host in (f"evil.example:{port}", f"localhost:{port}", f"127.0.0.1:{port}"):
        assert ask(url, Host=host)[0] == 421, host
    for origin in ("http://evil.example", "http://127.0.0.1:8642", "null"):
        assert ask(url, method="POST", body="a=1", Origin=origin)[0] == 403, origin


class WebSocket:
    """A WebSocket client that only listens."""

    def __init__(self, url: str, path: str, protocol: str, origin: str = "") -> None:
        place = urlsplit(url)
        self.end = socket.create_connection(("127.0.0.1", place.port or 0), 60)
        key = base64.b64encode(os.urandom(16)).decode()
        lines = (f"GET {path} HTTP/1.1", f"Host: {place.netloc}", "Connection: Upgrade", "Upgrade: websocket",
                 f"Sec-WebSocket-Key: {key}", "Sec-WebSocket-Version: 13", f"Sec-WebSocket-Protocol: {protocol}",
                 f"Origin: {origin or url.rstrip('/')}", "", "")
        self.end.sendall("\r\n".join(lines).encode())
        self.file = self.end.makefile("rb")
        self.head = b"".join(iter(self.file.readline, b"\r\n")).decode()
        accept = hashlib.sha1(f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()).digest()
        self.is_open = f"sec-websocket-accept: {base64.b64encode(accept).decode()}".lower() in self.head.lower()

    def read(self) -> str:
        """Return the next message, which is one frame."""
        _, size = self.file.read(2)
        size = int.from_bytes(self.file.read(2 if size == 126 else 8), "big") if size > 125 else size
        return self.file.read(size).decode()


def test_the_preview_of_a_vite_project_reloads_the_agents_changes(worlds: Worlds) -> None:
    home = worlds("npm")
    try:
        open_registries(home, "node")
    except Missing as missing:
        pytest.skip(str(missing))
    checkout = make(home, "page", VITE, "npm install --package-lock-only")
    command = ("npx vite --port 5173 --strictPort & for i in $(seq 1200); do sleep 0.5; "
               "sed -i \"1s/.*/document.title = 'number $i'/\" main.js; done")
    with previewed(home, checkout, 5173, "--setup", "npm ci", "--no-gate", "--command", command) as url:
        status, headers, text = ask(url, Accept="text/html")
        assert status == 200 and "/@vite/client" in text and "text/html" in headers["content-type"]
        assert ask(url, "/main.js")[0] == 200
        client = ask(url, "/@vite/client")[2]
        token = re.search(r'wsToken = "([^"]+)"', client)
        path = f"/?token={token[1]}" if token else "/"
        live = WebSocket(url, path, "vite-hmr")
        assert live.is_open, live.head
        assert '"connected"' in live.read()
        until = time.monotonic() + 60
        while '"update"' not in (message := live.read()) and '"full-reload"' not in message:
            assert time.monotonic() < until, message
        assert "main.js" in message
        assert WebSocket(url, path, "vite-hmr", "http://evil.example").head.startswith("HTTP/1.1 403")
        check_names(url)
        listed = home.shell(checkout, "garrison preview --list")
        assert url in listed and "5173" in listed
    assert socket.socket().connect_ex(("127.0.0.1", urlsplit(url).port or 0)) != 0, "its preview ends with the run"


@pytest.mark.skipif(POSTGRES is None, reason="no PostgreSQL here: apt-get install postgresql")
def test_a_django_project_has_a_postgresql_for_its_node_and_its_gate(worlds: Worlds) -> None:
    home = worlds("python")
    try:
        open_registries(home, "python")
    except Missing as missing:
        pytest.skip(str(missing))
    home.configure(f"""
[services.db]
command = "{POSTGRES}/postgres -D {{data}} -p {{port}} -k /tmp"
template = "{POSTGRES}/initdb -D {{data}} -U postgres --auth trust --no-sync"
ready = "{POSTGRES}/pg_isready -h 127.0.0.1 -p {{port}}"
port = 5432
env = {{ DATABASE_URL = "postgresql://postgres@127.0.0.1:{{port}}/postgres" }}
""")
    checkout = make(home, "site", DJANGO)
    setup = "python3 -m venv .venv && .venv/bin/pip install -q -r requirements.txt"
    manage = ".venv/bin/python manage.py"
    landed = home.run(checkout, "garrison", "run", "note the author", "--setup", setup, "--command",
                      "echo \"    author = models.TextField(default='')\" >> notes/models.py && "
                      f"{manage} makemigrations notes -n author && {manage} migrate", "--acceptance",
                      f"{manage} migrate --check", "--gate", f"{manage} test", seconds=600)
    assert landed.returncode == 0, f"{landed.stdout}\n{landed.stderr}\n{home.logs()}"
    assert "0002_author.py" in home.shell(checkout, "git ls-tree --name-only main notes/migrations/")
    command = f"{manage} migrate && {manage} runserver 8000"
    with previewed(home, checkout, 8000, "--setup", setup, "--no-gate", "--command", command) as url:
        status, headers, text = ask(url)
        assert status == 200 and "notes=[]" in text, text
        token, cookie = re.search("token=([A-Za-z0-9]+)", text), SimpleCookie(headers["set-cookie"])
        assert token is not None and not cookie["csrftoken"]["domain"]
        status, headers, _ = ask(url, "/", "POST", urlencode({"text": "hello", "csrfmiddlewaretoken": token[1]}),
                                 Content_Type="application/x-www-form-urlencoded", Origin=url.rstrip("/"),
                                 Referer=url, Cookie=f"csrftoken={cookie['csrftoken'].value}")
        assert (status, headers["location"]) == (302, url)
        assert "notes=['hello']" in ask(url)[2]
        check_names(url)
