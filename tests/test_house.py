"""The promises around the code: requirement lists, MLproject, Makefile, documents, import rules."""

import ast
import importlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import click
import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from bench.config import RunConfig, allowed_values, spelled
from bootstrap.setup import INPUTS
from commands import EXIT_CODES, OUTCOME_CODES
from mlproject import COMMANDS, cli

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

PROJECT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((PROJECT / "pyproject.toml").read_text("utf-8"))
MLPROJECT = yaml.safe_load((PROJECT / "MLproject").read_text("utf-8"))
ENTRY_POINTS = MLPROJECT["entry_points"]
PACKAGES = ("analysis", "bench", "campaigns", "commands", "tracking", "mlproject.py")
DOCUMENTS = sorted([*PROJECT.glob("*.md"), *PROJECT.glob("docs/**/*.md")])


def read(name):
    return (PROJECT / name).read_text("utf-8")


def requirement_lines(name):
    return [line for line in read(name).splitlines() if not line.startswith("#")]


def pins(name):
    """Distribution name -> every version that the file pins for it, one per marker."""
    pinned = {}
    for line in requirement_lines(name):
        requirement = Requirement(line)
        [specifier] = requirement.specifier
        assert specifier.operator == "==", line
        pinned.setdefault(canonicalize_name(requirement.name), []).append(specifier.version)
    return pinned


def declared(extra=None):
    project = PYPROJECT["project"]
    lines = project["optional-dependencies"][extra] if extra else project["dependencies"]
    return [Requirement(line) for line in lines]


def test_no_tracked_text_has_a_merge_conflict():
    listed = subprocess.run(
        ["git", "grep", "-nIE", "^(<{7}|>{7}|\\|{7}) "], cwd=PROJECT, capture_output=True, text=True
    )
    assert listed.stdout == ""


# Requirements


@pytest.mark.parametrize(
    ("file", "requirements"),
    [
        ("requirements.txt", declared()),
        ("requirements-dev.txt", declared() + declared("dev")),
    ],
)
def test_every_dependency_is_pinned_within_what_pyproject_asks(file, requirements):
    pinned = pins(file)
    for requirement in requirements:
        versions = pinned.get(canonicalize_name(requirement.name))
        assert versions, f"{requirement.name} is not in {file}: make lock"
        for version in versions:
            assert requirement.specifier.contains(version), f"{requirement}: {version}"


@pytest.mark.parametrize("file", [*INPUTS, "conda.yaml", "Makefile", ".ci/run", "MLproject"])
def test_no_index_is_named(file):
    assert not re.search(r"index-url|find-links|--hash|pypi|file://| @ ", read(file))
    if file.startswith("requirements"):  # no address and no path
        assert not re.search(r"://|[\\@]|(^|\s)[./~]", "\n".join(requirement_lines(file)))


def test_conda_and_mlflow_install_the_same_list():
    assert yaml.safe_load(read("python_env.yaml")) == {"dependencies": ["-r requirements.txt"]}
    conda = yaml.safe_load(read("conda.yaml"))["dependencies"]
    assert {"pip": ["-r requirements.txt"]} in conda
    [python] = [line for line in conda if str(line).startswith("python=")]
    assert python.removeprefix("python=") in SpecifierSet(PYPROJECT["project"]["requires-python"])


# Imports


def imported_by(*names):
    """Top-level module -> one file that imports it."""
    found = {}
    for name in names:
        path = PROJECT / name
        for file in [path] if path.is_file() else path.rglob("*.py"):
            for node in ast.walk(ast.parse(file.read_text("utf-8"))):
                if isinstance(node, ast.Import):
                    modules = [alias.name for alias in node.names]
                elif isinstance(node, ast.ImportFrom) and not node.level:
                    modules = [node.module]
                else:
                    continue
                found |= {module.split(".")[0]: file for module in modules}
    return found


OURS = {Path(name).stem for name in PACKAGES}
DISTRIBUTION = {
    "PIL": "pillow",
    "markdown_it": "markdown-it-py",
    "pynvml": "nvidia-ml-py",
    "yaml": "pyyaml",
}
#: Used where they are: with PyTorch's CUDA builds for Linux, with Nsight Compute, with an extra.
WHERE_PRESENT = {"amdsmi", "fvcore", "triton", "ray", "timm", "transformers"}
STANDARD_LIBRARY = sys.stdlib_module_names | {"tomllib"}  # since 3.11, used where it is there


@pytest.mark.slow
def test_what_is_imported_is_declared():
    known = {canonicalize_name(requirement.name) for requirement in declared()}
    for module, file in imported_by(*PACKAGES).items():
        if module not in STANDARD_LIBRARY | OURS | WHERE_PRESENT:
            distribution = canonicalize_name(DISTRIBUTION.get(module, module))
            assert distribution in known, f"{file} imports {module}: declare it in pyproject.toml"


def test_set_up_needs_the_standard_library_alone():
    assert imported_by("bootstrap").keys() <= sys.stdlib_module_names | {"bootstrap", "contrib"}


def test_the_root_has_28_entries_at_most():
    listed = subprocess.run(["git", "ls-files"], cwd=PROJECT, capture_output=True, text=True)
    assert len({path.split("/")[0] for path in listed.stdout.splitlines()}) <= 28


def test_no_two_files_of_tests_have_one_name():
    """pytest takes a second one for the first."""
    names = Counter(path.name for path in (PROJECT / "tests").rglob("test_*.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_a_folder_has_twenty_entries_at_most():
    for package in ("analysis", "bench", "campaigns", "commands", "tracking"):
        for init in (PROJECT / package).rglob("__init__.py"):
            entries = [path.name for path in init.parent.iterdir() if path.name != "__pycache__"]
            assert len(entries) <= 20, (init.parent, sorted(entries))


def test_a_page_names_each_tag_of_a_run():
    tags = re.findall(r"= \"(mlproject\.\w+)\"", read("tracking/schema.py"))
    page = read("docs/record.md")
    assert len(tags) > 20
    assert not [tag for tag in tags if not re.search(rf"`(mlproject)?\.{tag[10:]}`", page)]


# MLproject


def test_what_main_declares_has_the_defaults_of_the_settings():
    parameters = {
        name: given["default"] for name, given in ENTRY_POINTS["main"]["parameters"].items()
    }
    assert parameters == {name: RunConfig.model_fields[name].default for name in parameters}


@pytest.mark.parametrize("name", ENTRY_POINTS)
def test_entry_point_passes_every_parameter_to_an_option_that_exists(name):
    entry = ENTRY_POINTS[name]
    words = entry["command"].split()
    assert words[:2] == ["python", "mlproject.py"]
    command = subcommand(words[2:])
    options = {option for parameter in command.params for option in parameter.opts}
    passed = dict(re.findall(r"(--[\w-]+) \{(\w+)\}", entry["command"]))
    assert passed.keys() <= options
    assert sorted(passed.values()) == sorted(entry.get("parameters", {}))
    assert sorted(re.findall(r"\{(\w*)\}", entry["command"])) == sorted(passed.values())
    # MLflow quotes every value: a placeholder within quotes would let `$(...)` through
    assert not re.search(r"[\"'`$\\]", entry["command"])
    for parameter in entry.get("parameters", {}).values():
        default = str(parameter["default"])
        assert default
        assert shlex.quote(default) == default


def subcommand(words):
    command = cli.get_command(None, words[0])
    if isinstance(command, click.Group) and words[1:]:
        command = command.commands[words[1]]
    return command


# Makefile, continuous integration, documents


def make_targets():
    return set(re.findall(r"^([a-z][a-z-]*):", read("Makefile"), re.MULTILINE))


def commands_in(document):
    """The commands a document tells its reader to type: code blocks, and code within lines."""
    text = document.read_text("utf-8")
    blocks = re.findall(r"^```(?:sh|bash|console)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return lines + re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.DOTALL))


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_commands_that_exist(document):
    for line in commands_in(document):
        for target in re.findall(r"(?:^|&& )make ([a-z][a-z-]*)", line):
            assert target in make_targets(), line
        for words in re.findall(r"(?:^|&& )mlproject ([a-z].*)", line):
            check_options(words.split("#")[0].split(), line)
        for entry in re.findall(r"mlflow run \..* -e (\S+)", line):
            assert entry in ENTRY_POINTS, line
        if "mlflow run ." in line and " -e " not in line:
            assert set(re.findall(r"-P (\w+)=", line)) <= RunConfig.model_fields.keys(), line


def check_options(words, line):
    assert words[0] in COMMANDS, line
    parameters = subcommand(words).params
    words = words[: words.index("--")] if "--" in words else words  # what a script is given
    known = {name for option in parameters for name in (*option.opts, *option.secondary_opts)}
    used = {word.split("=")[0] for word in words if word.startswith("--")}
    assert used <= known | {"--help"}, line


def test_readme_lists_every_command():
    assert set(re.findall(r"^\| `mlproject ([a-z]+)", read("README.md"), re.MULTILINE)) == set(
        COMMANDS
    )


def test_documents_have_every_exit_code():
    listed = re.findall(r"^\| (\d+) \| ", read("README.md"), re.MULTILINE)
    assert {int(code) for code in listed} == EXIT_CODES.keys()
    [table] = re.findall(
        r"^\| outcome \|.*\n.*\n((?:\|.*\n)+)", read("docs/design.md"), re.MULTILINE
    )
    codes = {}
    for row in table.splitlines():
        outcomes, _, code = row.strip("| ").split(" | ")
        found = re.findall(
            r"\b(" + "|".join(OUTCOME_CODES) + r")\b", re.sub(r"\(.*?\)", "", outcomes)
        )
        codes |= dict.fromkeys(found, int(code.split(",")[0]))
    assert codes == OUTCOME_CODES


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(document):
    text = re.sub(r"```.*?```", "", document.read_text("utf-8"), flags=re.DOTALL)
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, heading = target.partition("#")
        file = document.parent / path if path else document
        assert file.exists(), f"{document.name}: {target}"
        if heading:
            assert heading in headings(file), f"{document.name}: {target}"


def headings(file):
    """The anchors that a web page makes of a document's headings."""
    found = re.findall(r"^#+ (.*)$", file.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", heading).strip().lower().replace(" ", "-") for heading in found}


def test_every_page_is_within_two_clicks_of_the_readme():
    reached = {PROJECT / "README.md"}
    for _click in range(2):
        links = {
            (page.parent / target.split("#")[0]).resolve()
            for page in reached
            for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))
            if target.split("#")[0].endswith(".md") and ":" not in target
        }
        reached |= links
    assert set((PROJECT / "docs").glob("*.md")) <= reached


def test_the_page_of_the_settings_has_each_with_its_values_and_default():
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| `(.*?)` \|", read("docs/settings.md"), re.MULTILINE)
    listed = {name: (re.findall(r"`([^`]+)`", values), default) for name, values, default in rows}
    assert len(rows) == len(listed)
    assert listed == {
        name: (list(allowed_values(name)), spelled(field.default))
        for name, field in RunConfig.model_fields.items()
    }


FOLDERS = (
    "analysis|bench|benchmarks|bootstrap|campaigns|commands|deploy|docs|examples|findings"
    "|contrib|research|tests|tracking"
)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_documents_name_files_that_exist(document):
    text = re.sub(r"\]\([^)]*\)|\w+://\S+", "", document.read_text("utf-8"))
    for path in re.findall(rf"(?<![\w/.~-])(?:{FOLDERS})/[\w./-]*[\w/]", text):
        assert (PROJECT / path).exists(), f"{document.name}: {path}"


def test_documents_name_tests_that_exist():
    files = {path.stem: path.read_text("utf-8") for path in PROJECT.glob("tests/**/test_*.py")}
    defined = set(re.findall(r"^def (test_\w+)", "\n".join(files.values()), re.MULTILINE))
    for document in DOCUMENTS:
        for name in re.findall(r"\btest_\w+", document.read_text("utf-8")):
            assert name in defined | files.keys(), f"{document.name}: {name}"


def test_documents_import_names_that_exist():
    for document in DOCUMENTS:
        blocks = re.findall(r"^```python\n(.*?)^```", document.read_text("utf-8"), re.M | re.S)
        for node in ast.walk(ast.parse("\n".join(blocks))):
            if isinstance(node, ast.ImportFrom) and node.module.split(".")[0] in OURS:
                module = importlib.import_module(node.module)
                for alias in node.names:
                    assert hasattr(module, alias.name), f"{document.name}: {alias.name}"


SKIPPING = """
import pytest

def test_of_a_device():
    pytest.skip("no cuda device here")

def test_of_a_program():
    pytest.skip("no browser here")

@pytest.mark.skipif(True, reason="needs lscpu")
def test_marked():
    pass
"""


def test_a_skip_for_want_of_a_program_can_be_a_failure(tmp_path):
    (tmp_path / "test_skipping.py").write_text(SKIPPING)
    (tmp_path / "test_whole_file.py").write_text("import pytest\npytest.importorskip('no_such')\n")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    command = [sys.executable, "-m", "pytest", "-p", "conftest", "--continue-on-collection-errors"]
    environ = {**os.environ, "PYTHONPATH": str(PROJECT / "tests"), "PYTEST_ADDOPTS": ""}
    command += ["--nothing-missing", str(tmp_path)]
    done = subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True)
    assert "1 failed, 1 skipped, 2 errors" in done.stdout


# The import rules: each is broken once, in a copy, and must be reported


LINT = Path(sys.executable).with_name("lint-imports")
LAYERS = ("analysis", "bench", "campaigns", "commands", "tracking")

CONTRACTS = PYPROJECT["tool"]["importlinter"]["contracts"]
#: An import that each contract forbids: the module that gets it, and the line.
OFFENCES = {
    "the data goes one way": ("bench.config", "import campaigns"),
    "bench is built in floors": ("bench.launcher", "import bench.worker.attempt"),
    "a report is made of comparisons, findings and figures": (
        "analysis.comparison",
        "import analysis.report",
    ),
    "no circles": ("analysis.roofs", "import analysis.runs"),
    "the core does without contrib and the server": ("tracking", "import contrib"),
    "the command line is the top": ("commands", "import mlproject"),
    "mlflow only in tracking": ("analysis", "import mlflow"),
    "torch only where steps are made and run": ("bench.records", "import torch"),
    "only a launcher starts a worker": ("campaigns", "import bench.worker.attempt"),
}


@pytest.fixture
def copy(tmp_path):
    """The packages with their rules, for a test to break."""
    for name in LAYERS:
        ignored = shutil.ignore_patterns("__pycache__", "*.html", "*.json")
        shutil.copytree(PROJECT / name, tmp_path / name, ignore=ignored)
    for name in ("pyproject.toml", "mlproject.py"):
        shutil.copy(PROJECT / name, tmp_path)
    return tmp_path


def offend(folder, module, line):
    place = folder / module.replace(".", "/")
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    with path.open("a", encoding="utf-8") as file:
        file.write(f"\n{line}\n")


@pytest.mark.slow
def test_every_rule_and_every_package_without_torch_is_reported_where_it_is_broken(copy):
    assert {contract["name"] for contract in CONTRACTS} == OFFENCES.keys()
    for module, line in OFFENCES.values():
        offend(copy, module, line)
    [without_torch] = [c for c in CONTRACTS if "torch" in c.get("forbidden_modules", ())]
    modules = without_torch["source_modules"]
    for module in modules:
        offend(copy, module, "import torch")
    output = subprocess.run(
        [LINT, "--no-cache"], cwd=copy, capture_output=True, text=True, env={"PYTHONPATH": "."}
    ).stdout
    assert (
        set(re.findall(r"^(.+?) BROKEN(?: \(.+\))?$", output, re.MULTILINE)) == OFFENCES.keys()
    ), output
    assert [m for m in modules if f"{m} is not allowed to import torch:" not in output] == []
