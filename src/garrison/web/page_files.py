"""Files of the page, as a browser gets them: all of its modules in one script, its styles in one sheet.

Sixty requests, each for a module, took longer than all that the page does before its first data. So the modules, which
stay separate files for editing and checking, are bundled on request:

1. `index.html` names `page.js` and `page.css`; a browser is sent both with the hash of their content in the name, and
   keeps them for good.
2. In the script each module is a function that runs once, when another module needs it.
3. A module that is requested by its own name (by a test, or a worker) re-exports from the script, so that it exists
   once. Only the stream's worker, which runs apart from the page, is a separate script.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

from garrison.errors import NotFound
from garrison.values import Value

FOLDER = Path(__file__).parent / "static"
PAGES = ("/", "/chat")
ENTRY, WORKER = "main.js", "stream_worker.js"
STYLES = ("app.css", "gantt.css", "home.css", "terminal.css")
"""Style sheets, in the order in which they apply."""
TYPES: Mapping[str, str] = {
    ".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8", ".wasm": "application/wasm", ".svg": "image/svg+xml",
    ".png": "image/png", ".ico": "image/x-icon", ".woff2": "font/woff2", ".json": "application/json",
    ".txt": "text/plain; charset=utf-8", ".webmanifest": "application/manifest+json",
}
"""Suffix → content type of each kind of file that is served."""
COMPRESSED = (".png", ".woff2", ".ico")
"""Kinds that are compressed already."""
FOR_GOOD = "public, max-age=31536000, immutable"
"""How long a browser keeps a file whose name changes with its content."""


class PageFile(Value):
    """File as it is sent: its content, also compressed ('' if that is not smaller), and the hash of it."""

    kind: str
    data: bytes
    compressed: bytes
    hash: str

    @property
    def tag(self) -> str:
        return f'"{self.hash}"'


def _file(kind: str, data: bytes) -> PageFile:
    # mtime=0: the same content gives the same bytes, whenever the server was started.
    compressed = gzip.compress(data, mtime=0) if len(data) > 1000 and kind not in COMPRESSED else b""
    return PageFile(kind, data, compressed, hashlib.sha256(data).hexdigest()[:20])


# ---- requests


async def send_index(request: Request) -> Response:
    """Send the page itself."""
    return _send(_made(_changed()).index, request)


async def send_worker(request: Request) -> Response:
    """Send the service worker; its address is at the root so that its scope is the whole page."""
    return _send(_find("service_worker.js"), request)


async def send_file(request: Request) -> Response:
    """Send a file of the page; NotFound for a name outside its folder."""
    name = request.path_params["name"]
    if (hashed := _HASHED.fullmatch(name)) is not None:
        found = _made(_changed()).page[hashed[2]]
        return _send(found, request, for_good=hashed[1] == found.hash)
    return _send(_find(name), request, for_good=bool(_VERSIONED.match(name)))


def prepare() -> None:
    """Bundle the page, so that the first visit does not wait for it."""
    _made(_changed())


_HASHED = re.compile(r"page\.(?:([0-9a-f]{20})\.)?(js|css)")
_VERSIONED = re.compile(r"vendor/[a-z]+-\d+\.\d+\.\d+/")


def _find(name: str) -> PageFile:
    """Return a file by its name in the folder; NotFound if there is none."""
    if any(part in ("", ".", "..") or "\0" in part or "\\" in part for part in name.split("/")):
        raise NotFound("the page has no such file")
    made = _made(_changed())
    if name in made.modules:
        return made.modules[name]
    path = FOLDER / name
    if path.suffix not in TYPES or not path.is_file() or FOLDER.resolve() not in path.resolve().parents:
        raise NotFound("the page has no such file")
    return _read(path, path.stat().st_mtime_ns)


def _send(file: PageFile, request: Request, *, for_good: bool = False) -> Response:
    """Send a file, or 304 if the browser's copy is current."""
    headers = {"etag": file.tag, "cache-control": FOR_GOOD if for_good else "no-cache", "vary": "accept-encoding"}
    if file.tag in request.headers.get("if-none-match", ""):
        return Response(status_code=304, headers=headers)
    headers["content-type"] = TYPES[file.kind]
    if file.compressed and "gzip" in request.headers.get("accept-encoding", ""):
        return Response(file.compressed, 200, headers | {"content-encoding": "gzip"})
    return Response(file.data, 200, headers)


@lru_cache(maxsize=64)
def _read(path: Path, _changed_at: int) -> PageFile:
    return _file(path.suffix, path.read_bytes())


# ---- the page in one script and one sheet


class Made(Value):
    """The bundled page: `page` by kind (`js`, `css`); `modules`: by name, what is sent for each module."""

    index: PageFile
    page: Mapping[str, PageFile]
    modules: Mapping[str, PageFile]


def _changed() -> int:
    """Return when a file of the page last changed: it may be edited while it is served."""
    with os.scandir(FOLDER) as entries:
        return max(entry.stat().st_mtime_ns for entry in entries)


@lru_cache(maxsize=1)
def _made(_changed_at: int) -> Made:
    def read(name: str) -> str:
        return (FOLDER / name).read_text(encoding="utf-8")

    modules = modules_of(ENTRY, read)
    page = {"js": _file(".js", script_of(ENTRY, modules).encode()),
            "css": _file(".css", "\n".join(map(read, STYLES)).encode())}
    index = read("index.html")
    for kind, file in page.items():
        index = index.replace(f"/static/page.{kind}", f"/static/page.{file.hash}.{kind}")
    stubs = {name: _file(".js", _stub(name, module, page["js"].hash).encode()) for name, module in modules.items()
             if "/" not in name}
    worker = script_of(WORKER, modules_of(WORKER, read))
    return Made(_file(".html", index.encode()), page, {**stubs, WORKER: _file(".js", worker.encode())})


class Module(Value):
    """Module as a function's body, what it exports, and which modules it imports at once and later.

    Names are those of files in the folder.
    """

    body: str
    exports: tuple[str, ...]
    imports: tuple[str, ...]
    later: tuple[str, ...]


_IMPORT = re.compile(r'^import ?(?:\{([^}]*)\}|(\w+)) ?from ?"\./([^"]+)";', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?function\*? |class |const )(\w+)", re.MULTILINE)
_EXPORTS = re.compile(r"(?:^|(?<=[;}]))export ?\{([^}]*)\};", re.MULTILINE)
_DEFAULT = re.compile(r"(?<=[;}])export default(?= ?function\()")
_LATER = re.compile(r'\bimport\("\./(\w+\.js)"\)')
_LEFT = re.compile(r"(?:^|[;}])(?:import|export)\b.*", re.MULTILINE)
_MAP = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)


def parse_module(name: str, text: str) -> Module:
    """Parse a module; ValueError for a form of import or export that neither we nor `vendor/` use."""
    folder = name.rpartition("/")[0]
    imports = list[str]()
    exports = [found[2] for found in _EXPORT.finditer(text)]

    def taken(found: re.Match[str]) -> str:
        imports.append(f"{folder}/{found[3]}".removeprefix("/"))
        names = found[1].replace(" as ", ": ") if found[1] is not None else f" default: {found[2]} "
        return f'const {{{names}}} = $need("{imports[-1]}");'

    def given(found: re.Match[str]) -> str:
        for word in filter(None, map(str.strip, found[1].split(","))):
            own, _, other = word.partition(" as ")
            exports.append(f"{other}: {own}" if other else own)
        return ""

    later = tuple(_LATER.findall(text))
    body = _EXPORTS.sub(given, _EXPORT.sub(r"\1\2", _IMPORT.sub(taken, _MAP.sub("", text))))
    if _DEFAULT.search(body):
        body = _DEFAULT.sub("const whole =", body)
        exports.append("default: whole")
    if (left := _LEFT.search(body)) is not None:
        raise ValueError(f"{name}: unsupported form of import or export: {left[0]:.80}")
    return Module(_LATER.sub(r'$later("\1")', body), tuple(exports), tuple(imports), later)


def modules_of(entry: str, read: Callable[[str], str]) -> dict[str, Module]:
    """Return every module that one needs, now or later, dependencies first.

    Raises ValueError for modules that import each other: neither could run first.
    """
    found = dict[str, Module]()
    open_ = list[str]()

    def add(name: str) -> None:
        if name in open_:
            raise ValueError(f"modules import each other: {' → '.join([*open_, name])}")
        if name in found:
            return
        open_.append(name)
        module = parse_module(name, read(name))
        for each in module.imports:
            add(each)
        open_.pop()
        found[name] = module
        left.extend(module.later)

    left = [entry]
    while left:
        add(left.pop())
    return found


_RUNTIME = """const makers = {};
const made = {};
export const $need = name => (made[name] ??= makers[name]());
const $later = async name => $need(name);
"""


def script_of(entry: str, modules: Mapping[str, Module]) -> str:
    """Return one script of these modules, which starts with `entry`."""
    makers = (f'makers["{name}"] = () => {{\n{module.body}\nreturn {{ {", ".join(module.exports)} }};\n}};\n'
              for name, module in modules.items())
    return f'{_RUNTIME}{"".join(makers)}$need("{entry}");\n'


def _stub(name: str, module: Module, page_hash: str) -> str:
    """Return a module that re-exports one of ours from the page's script, under the same names."""
    return (f'import {{ $need }} from "/static/page.{page_hash}.js";\n'
            f'export const {{ {", ".join(module.exports)} }} = $need("{name}");\n')
