"""Source code: this project's commit and a hash of what measures, and a user's own model's."""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from importlib.util import find_spec, resolve_name
from pathlib import Path
from typing import Any

from bench.config import split_arch
from bench.errors import Unknown
from bench.machine import UnknownFactError, output_of, probe, value_or_none
from bench.records import ModelCode

#: The folder that holds the packages.
TREE = Path(__file__).resolve().parents[2]
#: Set inside git hooks; they would point git at another repository.
_HOOK_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")


def repository_facts(tree: Path = TREE) -> dict[str, Any]:
    """Return `git_commit` and `git_dirty` (tracked files changed) of `tree`.

    A kit, which has no work tree, is dirty where the clone was that it was packed from, or where
    the source of `bench` was changed since.
    """
    packed = kit_facts(tree)
    if packed is not None:
        dirty = packed["git_dirty"] or code_id(tree / "bench") != packed["code_id"]
        return {"git_commit": packed["git_commit"], "git_dirty": dirty}
    return _git_facts(tree, "bench/__init__.py", f"{tree} is installed, not a git work tree")


def _git_facts(tree: Path, file: str, why_not_tracked: str) -> dict[str, Any]:
    """Return commit and state of the repository that tracks `file`, relative to `tree`.

    An environment, or a new file, may lie in a work tree that does not have it.
    """

    def git(*arguments: str) -> str:
        command = ("git", "--no-optional-locks", "-C", str(tree), *arguments)
        return output_of(*command, unset=_HOOK_VARIABLES)

    tracked = probe(git, "ls-files", "--error-unmatch", file)
    if isinstance(tracked, Unknown):
        why = Unknown(why_not_tracked) if "did not match" in tracked.reason else tracked
        return {"git_commit": why, "git_dirty": why}
    changes = probe(git, "status", "--porcelain", "--untracked-files=no")
    dirty = changes if isinstance(changes, Unknown) else bool(changes)
    return {"git_commit": probe(git, "rev-parse", "HEAD"), "git_dirty": dirty}


def kit_facts(tree: Path = TREE) -> dict[str, Any] | None:
    """Return `kit.json` of a kit for machines without a network; None where `tree` is no kit."""
    try:
        facts: dict[str, Any] = json.loads((tree / "kit.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    return facts


_BENCH = Path(__file__).resolve().parents[1]


def code_id(bench: Path = _BENCH) -> str:
    """Return twelve hex digits, equal where the source of `bench` is."""
    return _digest((path.relative_to(bench).as_posix(), path) for path in bench.rglob("*.py"))


def _digest(files: Iterable[tuple[str, Path]]) -> str:
    digest = hashlib.sha256()
    for name, path in sorted(files):
        digest.update(name.encode())
        digest.update(path.read_bytes().replace(b"\r\n", b"\n"))
    return digest.hexdigest()[:12]


NO_MODEL_CODE = Unknown("no model of a user's own")


def model_code(arch: str, folder: Path | None = None) -> ModelCode | Unknown:
    """Return the source of a user's own model, `module:callable`, without running it.

    That is the module's file, and the modules that it and these import from the working folder or
    from PYTHONPATH; of an installed package all of its files. Or of a script, named as a module of
    `folder`, and of what it imports from there.
    """
    if folder is None and split_arch(arch)[0] != "own":
        return NO_MODEL_CODE
    return probe(_model_code, arch.partition(":")[0], folder)


def has_changed(arch: str, digest: str | None) -> bool:
    """Whether the source of a user's own model is known to be another than that of `digest`."""
    if digest is None or split_arch(arch)[0] != "own":
        return False
    now = value_or_none(lambda: _digest(_sources(arch.partition(":")[0]).items()))
    return now not in (digest, None)


def _model_code(module: str, folder: Path | None) -> ModelCode:
    files = _sources(module, folder)
    own = files.get(module) or next(iter(files.values()))
    facts = _git_facts(own.parent, own.name, f"git does not track {own.name}")
    return ModelCode(digest=_digest(files.items()), modules=tuple(sorted(files)), **facts)


def _sources(module: str, folder: Path | None = None) -> dict[str, Path]:
    """The files of `model_code`, or of a script in `folder`, by the names of their modules."""
    paths = map(Path, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)))
    own = (path for path in paths if path != TREE and not _is_installed(path))
    files = dict(_imported(module, [folder] if folder else [Path.cwd(), *own]))
    files = files if files or folder else _installed(module)
    if not files:
        raise UnknownFactError(f"no file holds the module {module}")
    return files


def _is_installed(folder: Path) -> bool:
    """Whether packages of others, or Python's own, lie there: clusters set PYTHONPATH to such."""
    stdlib = sysconfig.get_path("stdlib")
    shared = not {"site-packages", "dist-packages"}.isdisjoint(folder.parts)
    return shared or folder.is_relative_to(stdlib)


def _imported(module: str, folders: Sequence[Path]) -> Iterator[tuple[str, Path]]:
    """The module and all that it imports from `folders`, by name; packages come with it."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        if package := name.rpartition(".")[0]:
            waiting.append(package)
        if (file := _file_of(name, folders)) is not None:
            yield name, file
            inside = name if file.name == "__init__.py" else package
            waiting += _named(ast.parse(file.read_bytes(), str(file)), inside)


def _file_of(name: str, folders: Sequence[Path]) -> Path | None:
    places = [folder.joinpath(*name.split(".")) for folder in folders]
    files = (file for place in places for file in (place / "__init__.py", place.with_suffix(".py")))
    return next((file for file in files if file.is_file()), None)


def _named(tree: ast.Module, package: str) -> Iterator[str]:
    """What a module of `package` imports; `from a import b` may mean a module b, or none."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            base = resolve_name(start, package) if node.level else start
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _installed(module: str) -> dict[str, Path]:
    """The files of the package, or the one file, that Python finds for a module."""
    top = module.partition(".")[0]
    spec = find_spec(top)
    if spec is None or spec.origin is None:
        return {}
    file = Path(spec.origin)
    if spec.submodule_search_locations is None:
        return {top: file}
    return {path.relative_to(file.parent).as_posix(): path for path in file.parent.rglob("*.py")}
