"""Finds calls of which two arguments write tile operations: C++ leaves open which is written first.

check_operand_order.py [files...]; without files, all that build kernels. Reads the trees of clang.
A function writes if it is a method of codegen::Builder that is not const, or calls one that writes.
Braces, which C++ evaluates from the left, and names set this right (codegen/tile/builder.h).
"""

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("codegen/passes", "kernels/llvm")
DUMP = "clang++ -std=c++20 -I. -w -fsyntax-only -Xclang -ast-dump=json -Xclang"
FUNCTIONS = {"FunctionDecl", "CXXMethodDecl", "CXXConstructorDecl", "CXXConversionDecl"}
CALLS = {"CallExpr", "CXXMemberCallExpr", "CXXOperatorCallExpr"}
CONSTRUCTIONS = {"CXXConstructExpr", "CXXTemporaryObjectExpr"}
WRAPPERS = {"ImplicitCastExpr", "ParenExpr", "MaterializeTemporaryExpr", "CXXBindTemporaryExpr"}
# C++17 orders the operands of these.
ORDERED = {f"operator{symbol}" for symbol in ("<<", ">>", "[]", ",", "=", "+=", "->", "&&", "||")}
ANY_FUNCTION = "std::function"  # may write


def children(node: dict) -> list[dict]:
    return [child for child in node.get("inner", []) if "kind" in child]


def unwrapped(node: dict, kinds: set[str] = WRAPPERS) -> dict:
    while node["kind"] in kinds and len(children(node)) == 1:
        node = children(node)[0]
    return node


class Positions:
    """clang names file and line only where they differ from those of the position before."""

    def __init__(self) -> None:
        self.file, self.line = "", 0

    def note(self, position: dict) -> None:
        for part in (position, position.get("spellingLoc"), position.get("expansionLoc")):
            if part:
                self.file = part.get("file", self.file)
                self.line = part.get("line", self.line)
        position["at"] = (self.file.removeprefix("./"), self.line)

    def walk(self, node: dict) -> None:
        for field, value in node.items():
            if field == "loc":
                self.note(value)
            elif field == "range":
                self.note(value["begin"])
                self.note(value["end"])
            elif field == "inner":
                for child in value:
                    self.walk(child)


class Calls:
    """Of all files: who calls whom, and the calls whose arguments call something."""

    def __init__(self) -> None:
        self.callees: dict[str, set[str]] = {}
        self.writers: set[str] = {ANY_FUNCTION}
        self.overrides: dict[str, set[str]] = {}
        self.sites: list[tuple[tuple[str, int], list[set[str]]]] = []

    def close(self) -> None:
        """Who calls a writer is one; a virtual method is one if any of its name is."""
        for names in self.overrides.values():
            for name in names:
                self.callees.setdefault(name, set()).update(names)
        found = True
        while found:
            found = {f for f, called in self.callees.items() if called & self.writers}
            found -= self.writers
            self.writers |= found

    def unordered(self) -> list[tuple[str, int]]:
        return sorted(
            {at for at, all_ in self.sites if sum(bool(a & self.writers) for a in all_) > 1}
        )


class File:
    def __init__(self, name: str, text: str, calls: Calls) -> None:
        self.name, self.calls, self.names = name, calls, {}
        positions, roots = Positions(), list(parse(text))
        for root in roots:
            positions.walk(root)
            self.name_functions(root, "")
        for root in roots:
            self.read(root)

    def name_functions(self, node: dict, owner: str) -> None:
        if node["kind"] in FUNCTIONS:
            local = node["name"] == "operator()" or "mangledName" not in node
            name = self.name + node["id"] if local else node["mangledName"]
            self.names[node["id"]] = name
            const = node["type"]["qualType"].endswith("const")
            if owner == "Builder" and node["kind"] == "CXXMethodDecl" and not const:
                self.calls.writers.add(name)
            if node.get("virtual") or any(c["kind"] == "OverrideAttr" for c in children(node)):
                self.calls.overrides.setdefault(node["name"], set()).add(name)
        owner = node.get("name", "") if node["kind"] == "CXXRecordDecl" else owner
        for child in children(node):
            self.name_functions(child, owner)

    def read(self, node: dict) -> None:
        if node["kind"] in FUNCTIONS:
            called = self.calls.callees.setdefault(self.names[node["id"]], set())
            for child in children(node):
                called |= self.called_in(child)
        elif node["kind"] == "VarDecl":
            self.called_in(node)
        else:
            for child in children(node):
                self.read(child)

    def called_in(self, node: dict) -> set[str]:
        """What evaluating `node` calls. A lambda's body is a function of its own."""
        kind = node["kind"]
        if kind == "LambdaExpr":
            self.read(children(node)[0])
            return set()
        if kind in FUNCTIONS:
            self.read(node)
            return set()
        if kind in CALLS or kind in CONSTRUCTIONS:
            return self.called_by_call(node)
        return set().union(*map(self.called_in, children(node)))

    def called_by_call(self, node: dict) -> set[str]:
        parts = children(node)
        head = parts[:1] if node["kind"] in CALLS else []
        arguments = parts[len(head) :]
        called = [self.called_in(argument) for argument in arguments]
        callee, operator = self.callee(head[0], arguments) if head else ("", "")
        if operator not in ORDERED and not node.get("list"):
            # The object that is called is evaluated before its arguments.
            apart = called[1:] if operator == "operator()" else called
            self.calls.sites.append((node["range"]["begin"]["at"], apart))
        every = {callee}.union(*called, *map(self.called_in, head))
        if head:  # a lambda that is passed on is called
            every.update(*map(self.bodies, arguments))
        return every

    def callee(self, head: dict, arguments: list[dict]) -> tuple[str, str]:
        head = unwrapped(head)
        decl = head.get("referencedDecl", {})
        operator = decl.get("name", "") if decl.get("name", "").startswith("operator") else ""
        name = self.names.get(head.get("referencedMemberDecl") or decl.get("id"), "")
        if not name and (
            decl.get("kind") in ("VarDecl", "ParmVarDecl") or operator == "operator()"
        ):
            kind = arguments[0]["type"]["qualType"] if operator and arguments else "function<"
            name = ANY_FUNCTION if "function<" in kind else ""
        return name, operator

    def bodies(self, argument: dict) -> set[str]:
        argument = unwrapped(argument, WRAPPERS | CONSTRUCTIONS | {"ExprWithCleanups"})
        if argument["kind"] != "LambdaExpr":
            return set()
        members = [m for m in children(children(argument)[0]) if m.get("name") == "operator()"]
        every = [m for member in members for m in (member, *children(member))]
        return {self.names[m["id"]] for m in every if m.get("id") in self.names}


def parse(text: str) -> Iterator[dict]:
    decoder, at = json.JSONDecoder(), 0
    while text[at:].lstrip():
        at += len(text[at : at + 8]) - len(text[at : at + 8].lstrip())
        tree, at = decoder.raw_decode(text, at)
        yield tree


def dump(file: str) -> str:
    command = [*DUMP.split(), "-ast-dump-filter=tenon", file]
    return subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> int:
    sources = sorted(p for folder in FOLDERS for p in (ROOT / folder).rglob("*.cc"))
    files = sys.argv[1:] or [str(p.relative_to(ROOT)) for p in sources]
    calls = Calls()
    with ThreadPoolExecutor(2) as pool:
        for file, text in zip(files, pool.map(dump, files), strict=True):
            File(file, text, calls)
    calls.close()
    if len(calls.writers) == 1:
        sys.exit("no method of codegen::Builder was found")
    found = [at for at in calls.unordered() if not at[0].startswith("/")]
    for file, line in found:
        print(f"{file}:{line}: two arguments of one call write operations; use braces or names")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
