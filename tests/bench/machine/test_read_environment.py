import os
import subprocess
import sys
from importlib import metadata

import pytest
import samples
import torch

from bench.config import RunConfig
from bench.errors import Unknown
from bench.machine.cpu import cpu_device_info
from bench.machine.environment import environment_label, read_environment, speed_variables
from bench.machine.repository import has_changed, model_code, repository_facts
from bench.records import DeviceInfo, Environment


def test_this_machine(tmp_path, monkeypatch):
    monkeypatch.setenv("OMP_PROC_BIND", "close")
    found = read_environment(cpu_device_info(), tmp_path / "records", "auto")
    assert Environment.model_validate_json(found.model_dump_json()) == found
    assert torch.__version__.split("+")[0] == found.torch.split("+")[0]
    assert found.torch == metadata.version("torch")
    assert found.cuda == torch.version.cuda
    assert found.python.startswith(f"{sys.version_info.major}.{sys.version_info.minor}.")
    assert found.cpu_cores_usable >= 1
    assert {"numpy", "pillow"} <= found.packages.keys()
    assert ("nccl" in found.packages) <= (torch.version.cuda is not None)
    assert found.label
    assert found.storage
    assert found.variables["OMP_PROC_BIND"] == "close"
    assert "OMP_PROC_BIND=close" in found.variables_set


def device(backend, name):
    return samples.facts(DeviceInfo, backend=backend, name=name)


@pytest.mark.parametrize(
    ("backend", "name", "label"),
    [
        ("cuda", "NVIDIA H200", "nvidia-h200"),
        ("cuda", "NVIDIA GeForce RTX 4090 Laptop GPU", "nvidia-geforce-rtx-4090-laptop-gpu"),
        ("cuda", "Tesla T4", "tesla-t4"),
        ("mps", "Apple M3 Max", "apple-m3-max"),
        ("cpu", "Apple M3 Max", "apple-m3-max-cpu"),
        ("cpu", "AMD EPYC", "amd-epyc"),
        ("cpu", "AMD EPYC 7B12 64-Core Processor", "amd-epyc-7b12"),
        ("cpu", "AMD Ryzen 7 7840U with Radeon 780M Graphics", "amd-ryzen-7-7840u"),
        ("cpu", "Intel(R) Core(TM) i9-14900HX", "intel-core-i9-14900hx"),
        ("cpu", "Intel(R) Xeon(R) CPU @ 2.20GHz", "intel-xeon"),
        ("cpu", "CPU", "cpu"),
        ("cuda", "显卡", "cuda"),
        ("cuda", "x" * 63 + " y", "x" * 63),
    ],
)
def test_labels_of_devices(backend, name, label):
    assert environment_label(device(backend, name)) == label == RunConfig(env=label).env


def test_what_libraries_compute_by_is_kept_and_nothing_else():
    environ = {
        "OMP_PROC_BIND": "true",
        "KMP_AFFINITY": "granularity=fine,compact",
        "NVIDIA_TF32_OVERRIDE": "1",
        "TORCHINDUCTOR_CACHE_DIR": "/home/somebody/cache",
        "MKL_HOME": "/home/somebody/mkl",
        "MLFLOW_TRACKING_PASSWORD": "secret",
        "TORCH_COMPILE_DISABLE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "PYTORCH_MIOPEN_SUGGEST_NHWC": "1",
        "TORCHINDUCTOR_REDIS_URL": "redis://:secret@host:6379/0",
        "NCCL_API_KEY": "secret",
        "MKL_PASSWORD": "secret",
        "OMP_SECRET": "secret",
        "NCCL_PROXY": "https://user:secret@host",
        "PATH": "/usr/bin",
    }
    assert speed_variables(environ) == {
        "KMP_AFFINITY": "granularity=fine,compact",
        "NVIDIA_TF32_OVERRIDE": "1",
        "OMP_PROC_BIND": "true",
        "TORCH_COMPILE_DISABLE": "1",
        "TORCHDYNAMO_DISABLE": "1",
        "PYTORCH_MIOPEN_SUGGEST_NHWC": "1",
        **dict.fromkeys(
            ("TORCHINDUCTOR_REDIS_URL", "NCCL_API_KEY", "MKL_PASSWORD", "OMP_SECRET", "NCCL_PROXY"),
            "(left out)",
        ),
    }


def test_a_machine_that_tells_nothing_gives_reasons_and_no_error(tree, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise OSError("out of order")

    monkeypatch.setattr("platform.system", lambda: "Linux")  # whose root holds the facts
    monkeypatch.setattr("psutil.disk_partitions", broken)
    monkeypatch.setattr("psutil.sensors_battery", broken, raising=False)
    monkeypatch.setattr("psutil.cpu_count", lambda logical=True: None)
    monkeypatch.setattr("torch.backends.cudnn.version", broken)
    monkeypatch.setenv("PATH", "")
    tree({})
    found = read_environment(cpu_device_info(), tmp_path, "my-laptop")
    assert found.label == "my-laptop"
    for name in ("cpu_model", "cpu_cores_physical", "storage", "git_commit"):
        assert getattr(found, name) is None
        assert found.missing[name]
    assert found.missing["cudnn"] == "OSError: out of order"
    assert found.missing["virtualization"]
    assert "not named" in found.missing["cloud_provider"]


# Real git repositories in a temporary folder


def git(folder, *arguments):
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=no"]
    done = subprocess.run(
        ["git", "-C", str(folder), *identity, *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return done.stdout.strip()


@pytest.fixture
def project(tmp_path):
    folder = tmp_path / "project"
    (folder / "bench").mkdir(parents=True)
    (folder / "bench/__init__.py").write_text("")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    return folder


def test_a_changed_file_is_dirty_and_a_new_one_is_not(project, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "elsewhere"))  # as a hook has it
    (project / "records.json").write_text("{}")
    assert repository_facts(project)["git_dirty"] is False
    (project / "bench/__init__.py").write_text("changed = True")
    monkeypatch.delenv("GIT_DIR")
    commit = git(project, "rev-parse", "HEAD")
    assert repository_facts(project) == {"git_commit": commit, "git_dirty": True}


def test_what_no_repository_tracks_has_no_commit_and_the_reason(project, tmp_path, monkeypatch):
    installed = project / ".venv/site-packages"
    (installed / "bench").mkdir(parents=True)
    (installed / "bench/__init__.py").write_text("")
    why = Unknown(f"{installed} is installed, not a git work tree")
    assert repository_facts(installed) == {"git_commit": why, "git_dirty": why}
    assert "not a git repository" in repository_facts(tmp_path)["git_commit"].reason
    monkeypatch.setenv("PATH", "")
    assert repository_facts(project)["git_dirty"] == Unknown("no program git here")


@pytest.fixture
def model(tmp_path, monkeypatch):
    """A user's repository, in its folder: a model in a package, and what it imports."""
    folder = tmp_path / "mine"
    (folder / "nets").mkdir(parents=True)
    (folder / "nets/__init__.py").write_text("")
    (folder / "nets/net.py").write_text("import torch\nfrom . import layers\nfrom nets import x\n")
    (folder / "nets/layers.py").write_text("def gelu():\n    import kernels\n")
    (folder / "kernels.py").write_text("")
    (folder / "unrelated.py").write_text("")
    git(folder, "init", "--quiet")
    git(folder, "add", ".")
    git(folder, "commit", "--quiet", "-m", "first")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PYTHONPATH", "")
    return folder


def code_of(arch="nets.net:net"):
    return model_code(arch)


def test_the_code_of_a_model_is_its_module_and_what_that_imports_from_here(model):
    first = code_of()
    assert first.modules == ("kernels", "nets", "nets.layers", "nets.net")
    assert (first.git_commit, first.git_dirty) == (git(model, "rev-parse", "HEAD"), False)
    assert not has_changed("nets.net:net", first.digest)
    layers = model / "nets/layers.py"
    layers.write_bytes(layers.read_bytes().replace(b"\n", b"\r\n"))
    assert code_of().digest == first.digest
    assert "__init__.py" in " ".join(code_of("mypy:main").modules)  # of an installed package: all


@pytest.mark.parametrize(
    ("file", "text", "is_another"),
    [
        ("nets/net.py", "changed = 1\n", True),
        ("nets/layers.py", "changed = 1\n", True),
        ("kernels.py", "changed = 1\n", True),
        ("kernels.py", "", False),
        ("unrelated.py", "changed = 1\n", False),
    ],
)
def test_a_change_of_what_is_imported_is_another_code(model, file, text, is_another):
    first = code_of()
    (model / file).write_text(text)
    second = code_of()
    assert (second.digest != first.digest) == is_another
    assert has_changed("nets.net:net", first.digest) == is_another
    assert second.git_dirty == bool(text)
    assert second.git_commit == first.git_commit


def test_installed_packages_on_the_path_are_no_code_of_the_model(model, tmp_path, monkeypatch):
    first = code_of()
    installed = tmp_path / "lib/site-packages"
    (installed / "torch").mkdir(parents=True)
    (installed / "torch/__init__.py").write_text("")
    shared = tmp_path / "shared"
    shared.mkdir()
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([*map(str, (installed, shared)), *sys.path]))
    assert code_of() == first
    (shared / "torch.py").write_text("")
    assert "torch" in code_of().modules


def test_what_git_does_not_track_has_no_commit_and_a_digest_all_the_same(model):
    (model / "new.py").write_text("net = 1\n")
    found = code_of("new:net")
    assert (found.git_commit, found.git_dirty) == (None, None)
    assert "new.py" in found.missing["git_commit"]
    assert found.digest


@pytest.mark.parametrize(("arch", "reason"), [("resnet18", "no model"), ("no_such:net", "no file")])
def test_a_model_without_a_file_has_no_code_and_the_reason(model, arch, reason):
    assert reason in model_code(arch).reason
    assert not has_changed(arch, "another")
