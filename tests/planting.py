"""Plant a bug in a Python source: addressed on its syntax tree, never by its text or a line number.

An address names a file, a function (qualified; empty for the module's own level), the kind of node to change, a name
that the node mentions, and `nth` where several fit. Names of local variables take no part, so that neither a rename of
one, nor another formatting, nor an unrelated statement makes an address miss. What no longer fits is refused with the
nearest candidates.
"""

from __future__ import annotations

import ast
import copy
import difflib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

SWAPPED = "swapped"
"""What a statement becomes that changes places with the next one."""
_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
_KIND_OF_STATEMENT = {ast.If: "if", ast.For: "for", ast.While: "while", ast.With: "with", ast.Try: "try",
                      ast.Return: "return statement", ast.Raise: "raise", ast.Assign: "assignment",
                      ast.AnnAssign: "assignment", ast.AugAssign: "assignment", ast.Expr: "call statement",
                      ast.Pass: "pass", ast.Continue: "continue", ast.Break: "break", ast.Match: "match"}
_FIELDS = {(ast.If, "test"): "condition", (ast.While, "test"): "condition", (ast.IfExp, "test"): "condition",
           (ast.comprehension, "ifs"): "condition", (ast.match_case, "guard"): "condition",
           (ast.BoolOp, "values"): "operand", (ast.BinOp, "left"): "operand", (ast.BinOp, "right"): "operand",
           (ast.Call, "args"): "argument", (ast.keyword, "value"): "argument", (ast.List, "elts"): "element",
           (ast.Tuple, "elts"): "element", (ast.Set, "elts"): "element", (ast.Dict, "values"): "element",
           (ast.Return, "value"): "return", (ast.Assign, "value"): "value", (ast.AnnAssign, "value"): "value",
           (ast.NamedExpr, "value"): "value", (ast.For, "iter"): "iterable", (ast.comprehension, "iter"): "iterable",
           (ast.ExceptHandler, "type"): "caught"}
_EXPRESSIONS = {ast.Compare: "comparison", ast.Call: "call", ast.IfExp: "choice", ast.Constant: "constant",
                ast.BoolOp: "connection", ast.BinOp: "operation", ast.ListComp: "comprehension",
                ast.SetComp: "comprehension", ast.DictComp: "comprehension", ast.JoinedStr: "f-string"}
TEXT = "text"
"""Kind of a text constant of which a fragment, `mentions`, becomes another: for programs in other languages."""


class Misplanted(ValueError):
    """An address fits nothing, or more than one place."""


@dataclass(frozen=True)
class Planting:
    """One change of one node.

    `becomes` is Python in which `it` stands for what is there, `x1`, `x2` ... for its local variables in the order in
    which they occur, and `p1` ... for the function's parameters; empty drops it, and `swapped` lets a statement change
    places with the next. `nth` is 0 if the address fits one place only.
    """

    path: str
    function: str
    kind: str
    becomes: str = ""
    mentions: str = ""
    nth: int = 0

    def __str__(self) -> str:
        """Return the address."""
        about = f" that mentions {self.mentions}" if self.mentions else ""
        number = f" number {self.nth}" if self.nth else ""
        return f"{self.path}: {self.kind}{about}{number} in {self.function or 'the module'}"


@dataclass(frozen=True)
class Place:
    """A node that can be changed, and where it hangs."""

    kind: str
    node: ast.AST
    holder: ast.AST
    field: str
    index: int | None

    def put(self, new: Sequence[ast.AST]) -> None:
        """Put nodes where this one is; none drops it."""
        if self.index is not None:
            nodes = getattr(self.holder, self.field)
            nodes[self.index:self.index + 1] = new
            if isinstance(self.holder, ast.Dict) and not new:
                del self.holder.keys[self.index]
        else:
            setattr(self.holder, self.field, new[0] if new else None)


# ---- what is there ---------------------------------------------------------------------------------------------------


def scopes(tree: ast.AST, above: str = "") -> Iterator[tuple[str, ast.AST]]:
    """Yield the module, its classes and its functions, each with its qualified name."""
    if isinstance(tree, ast.Module):
        yield "", tree
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, _SCOPES):
            name = f"{above}.{child.name}" if above else child.name
            yield name, child
            yield from scopes(child, name)
        elif not isinstance(child, ast.expr):  # no expression has a scope inside that is addressed
            yield from scopes(child, above)


def places(scope: ast.AST) -> Iterator[Place]:
    """Yield what can be changed in a scope, in the order of the source, without the scopes inside."""
    for field, value in ast.iter_fields(scope):
        if field in ("decorator_list", "args", "returns", "annotation", "bases") and not isinstance(scope, ast.Call):
            continue
        nodes = value if isinstance(value, list) else [value]
        for index, node in enumerate(nodes):
            if not isinstance(node, ast.AST) or _is_docstring(scope, field, index, node):
                continue
            kinds = [kind for kind in (_FIELDS.get((type(scope), field)), _EXPRESSIONS.get(type(node)),
                                       _KIND_OF_STATEMENT.get(type(node))) if kind]
            for kind in kinds:
                yield Place(kind, node, scope, field, index if isinstance(value, list) else None)
            if isinstance(node, ast.keyword):
                yield Place("keyword", node, scope, field, index)
            if not isinstance(node, _SCOPES):
                yield from places(node)


def _is_docstring(scope: ast.AST, field: str, index: int, node: ast.AST) -> bool:
    return field == "body" and isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def local_names(scopes_around: Sequence[ast.AST]) -> set[str]:
    """Return the names that functions bind: parameters, assigned names, captures."""
    names: set[str] = set()
    for scope in scopes_around:
        if isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
            for node in ast.walk(scope):
                if isinstance(node, ast.arg):
                    names.add(node.arg)
                elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                    names.add(node.id)
                elif isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar)) and node.name:
                    names.add(node.name)
    return names - {"self", "cls"}


def locals_in_order(node: ast.AST, names: set[str]) -> list[str]:
    """Return the local variables that occur in a node, in the order of first occurrence."""
    found: dict[str, None] = {}
    for name in _in_order(node):
        if isinstance(name, ast.Name) and name.id in names:
            found.setdefault(name.id)
    return list(found)


def parameters(scope: ast.AST) -> list[str]:
    """Return the parameters of a function, without `self`."""
    if not isinstance(scope, (ast.FunctionDef, ast.AsyncFunctionDef)):
        return []
    every = (*scope.args.posonlyargs, *scope.args.args, *scope.args.kwonlyargs)
    return [each.arg for each in every if each.arg not in ("self", "cls")]


def _in_order(node: ast.AST) -> Iterator[ast.AST]:
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _in_order(child)


def mentioned(place: Place, names: set[str]) -> set[str]:
    """Return the names that a place mentions and that are not local variables, and its short texts."""
    return {word for head in _heads(place) for node in ast.walk(head) for word in _words(node, names)}


def _heads(place: Place) -> list[ast.AST]:
    """Return the nodes whose names tell a place from others: without the body, with what a value is assigned to."""
    match place.node:
        case ast.If(test=test) | ast.While(test=test):
            return [test]
        case ast.For(target=target, iter=iterated):
            return [target, iterated]
        case ast.With(items=items):
            return list(items)
        case ast.Try():
            return []
    match place.kind, place.holder:
        case "value", ast.Assign(targets=targets):
            return [place.node, *targets]
        case "value", ast.AnnAssign(target=target):
            return [place.node, target]
        case "element", ast.Dict(keys=keys) if place.index is not None:
            return [place.node, *filter(None, [keys[place.index]])]
        case "argument", ast.keyword() as keyword:
            return [keyword]
    return [place.node]


def _words(node: ast.AST, names: set[str]) -> list[str]:
    match node:
        case ast.Name(id=word) if word not in names and word != "self":
            return [word]
        case ast.Attribute(attr=word) | ast.keyword(arg=str(word)):
            return [word]
        case ast.Constant(value=str(word)) if 1 < len(word) <= 40:
            return [word]
    return []


# ---- changing it -----------------------------------------------------------------------------------------------------


class _Filled(ast.NodeTransformer):
    """Fill the holes of a planting's code."""

    def __init__(self, it: ast.AST, names: Sequence[str], given: Sequence[str]) -> None:
        self.it = it
        self.holes = {f"x{number}": name for number, name in enumerate(names, 1)} | {
            f"p{number}": name for number, name in enumerate(given, 1)}

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        if isinstance(node.value, ast.Name) and node.value.id == "it" and isinstance(self.it, ast.stmt):
            return copy.deepcopy(self.it)
        return self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> ast.AST:
        if node.id == "it":
            return copy.deepcopy(self.it)
        return ast.Name(self.holes.get(node.id, node.id), node.ctx)


def find(tree: ast.Module, planting: Planting) -> tuple[Place, ast.AST, set[str]]:
    """Return what a planting addresses, its scope and the scope's local variables; Misplanted if it is not there."""
    around = dict(scopes(tree))
    if planting.function not in around:
        near = difflib.get_close_matches(planting.function, around, 4, 0.4)
        alike = [name for name, scope in around.items() if planting.mentions and any(
            place.kind == planting.kind and planting.mentions in mentioned(place, set()) for place in places(scope))]
        raise Misplanted(f"{planting}: there is no such function; nearest: {', '.join(near) or 'none'}; the rest of "
                         f"the address fits: {', '.join(alike) or 'none'}")
    scope = around[planting.function]
    parts = planting.function.split(".")
    names = local_names([around[".".join(parts[:count])] for count in range(1, len(parts) + 1) if planting.function])
    same = [place for place in places(scope) if place.kind == ("constant" if planting.kind == TEXT else planting.kind)]
    fits = [place for place in same if not planting.mentions or planting.mentions in (
        str(getattr(place.node, "value", "")) if planting.kind == TEXT else mentioned(place, names))]
    if len(fits) < max(1, planting.nth) or (not planting.nth and len(fits) > 1):
        shown = [f"line {getattr(place.node, 'lineno', '?')}: {ast.unparse(place.node).splitlines()[0][:90]}"
                 for place in (fits or same)[:6]]
        raise Misplanted(f"{planting}: {len(fits)} places fit; nearest:\n  " + "\n  ".join(shown or [
            "none; kinds there: " + ", ".join(sorted({place.kind for place in places(scope)}))]))
    return fits[max(1, planting.nth) - 1], scope, names


def change(tree: ast.Module, planting: Planting) -> None:
    """Apply a planting to a tree; Misplanted if its address does not fit or it changes nothing."""
    place, scope, names = find(tree, planting)
    before = ast.dump(scope)
    _put(place, scope, names, planting)
    _Mender().visit(scope)
    if ast.dump(scope) == before:
        raise Misplanted(f"{planting}: it changes nothing")


def _put(place: Place, scope: ast.AST, names: set[str], planting: Planting) -> None:
    if planting.becomes == SWAPPED:
        body = getattr(place.holder, place.field)
        if place.index is None or place.index + 1 >= len(body):
            raise Misplanted(f"{planting}: no statement follows it")
        body[place.index], body[place.index + 1] = body[place.index + 1], body[place.index]
        return
    if planting.kind == TEXT:
        assert isinstance(place.node, ast.Constant)
        place.node.value = str(place.node.value).replace(planting.mentions, planting.becomes)
        return
    new = list(ast.parse(planting.becomes).body)
    filled = _Filled(place.node, locals_in_order(place.node, names), parameters(scope))
    if isinstance(place.node, ast.stmt):
        place.put([filled.visit(statement) for statement in new])
    else:
        place.put([filled.visit(statement.value) for statement in new if isinstance(statement, ast.Expr)])


class _Mender(ast.NodeTransformer):
    """Make a tree whole again of which something was dropped: an operand, or the last statement of a block."""

    def generic_visit(self, node: ast.AST) -> ast.AST:
        super().generic_visit(node)
        match node:
            case ast.BoolOp(values=[only]):
                return only
            case ast.BinOp(left=None, right=rest) | ast.BinOp(left=rest, right=None):
                return rest
            case ast.AST(body=[]) if not isinstance(node, ast.Module):
                node.body = [ast.Pass()]  # every node that has a body
        return node


def plant(text: str, planting: Planting) -> str:
    """Return a source with a planted bug; Misplanted if its address does not fit or it changes nothing."""
    tree = ast.parse(text)
    change(tree, planting)
    return ast.unparse(ast.fix_missing_locations(tree)) + "\n"


def plant_all(plantings: Sequence[Planting], root: Path) -> dict[Path, str]:
    """Plant bugs in the files below `root`, one after the other; return what stood in each file before."""
    before: dict[Path, str] = {}
    trees = changed(plantings, root)
    for name, tree in trees.items():
        path = root / name
        before[path] = path.read_text(encoding="utf-8")
        path.write_text(ast.unparse(ast.fix_missing_locations(tree)) + "\n", encoding="utf-8")
    return before


def changed(plantings: Sequence[Planting], root: Path) -> dict[str, ast.Module]:
    """Apply plantings in memory; return the changed trees, which lack locations, by their files. Misplanted if one
    does not fit."""
    trees: dict[str, ast.Module] = {}
    for planting in plantings:
        path = root / planting.path
        if not path.is_file():
            raise Misplanted(f"{planting}: there is no such file; {_elsewhere(planting, root)}")
        try:
            tree = trees.setdefault(planting.path, ast.parse(path.read_text(encoding="utf-8")))
            change(tree, planting)
        except Misplanted as error:
            raise Misplanted(f"{error}\n{_elsewhere(planting, root)}") from None
    return trees


def _elsewhere(planting: Planting, root: Path) -> str:
    """Name other files that define a function of the same name."""
    last = planting.function.rpartition(".")[2]
    wanted = re.compile(rf"^\s*(?:async )?(?:def|class) {re.escape(last)}\b", re.MULTILINE)
    found = [str(path.relative_to(root)) for path in sorted((root / "src").rglob("*.py"))
             if last and path != root / planting.path and wanted.search(path.read_text(encoding="utf-8"))]
    return f"{last} is also defined in: {', '.join(found[:5])}" if found else "no other file defines it"
