"""This project's own code: its commit in a git work tree or a kit, and a hash of what measures."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from bench.machine.probes import ProbedFacts, UnknownFactError, gather, output_of

#: The folder that holds the packages.
TREE = Path(__file__).resolve().parents[2]
#: Set inside git hooks; they would point git at another repository.
_HOOK_VARIABLES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX")


def repository_facts(tree: Path = TREE) -> ProbedFacts:
    """Return `git_commit` and `git_dirty` (tracked files changed) of `tree`.

    A kit, which has no work tree, is dirty where the clone was that it was packed from, or where
    the source of `bench` was changed since.
    """
    packed = kit_facts(tree)
    if packed is not None:
        dirty = packed["git_dirty"] or code_id(tree / "bench") != packed["code_id"]
        return ProbedFacts({"git_commit": packed["git_commit"], "git_dirty": dirty}, {})
    changes = ("status", "--porcelain", "--untracked-files=no")
    return gather(
        {
            "git_commit": lambda: _own_git(tree, "rev-parse", "HEAD"),
            "git_dirty": lambda: bool(_own_git(tree, *changes)),
        }
    )


def _own_git(tree: Path, *arguments: str) -> str:
    """Git's answer, where `tree` is its own: an environment may lie in another's work tree."""
    try:
        _git(tree, "ls-files", "--error-unmatch", "bench/__init__.py")
    except UnknownFactError as error:
        if "did not match" in str(error):
            raise UnknownFactError(f"{tree} is installed, not a git work tree") from None
        raise
    return _git(tree, *arguments)


def _git(tree: Path, *arguments: str) -> str:
    """Git's answer, without the locks it takes for its own convenience."""
    return output_of(
        "git", "--no-optional-locks", "-C", str(tree), *arguments, unset=_HOOK_VARIABLES
    )


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
    digest = hashlib.sha256()
    for path in sorted(bench.rglob("*.py"), key=lambda path: path.relative_to(bench).as_posix()):
        digest.update(path.relative_to(bench).as_posix().encode())
        digest.update(path.read_text(encoding="utf-8").encode())  # whatever ends its lines
    return digest.hexdigest()[:12]
