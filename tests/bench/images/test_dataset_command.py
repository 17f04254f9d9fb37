import hashlib
import json
import tarfile

from click.testing import CliRunner
from range_server import serving

from commands.dataset import Dataset


def run(*arguments):
    result = CliRunner().invoke(Dataset.command(), [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    assert result.stderr == ""  # no progress bar where there is no terminal
    return result.stdout


def test_generate_and_subset_print_one_line(tmp_path):
    out = tmp_path / "photos"
    printed = run("generate", "--out", out, "--classes", 2, "--images-per-class", 3)
    assert printed.startswith("6 images in 2 classes, ")
    assert printed.endswith(f" pixels on average: {out}\n")
    assert printed.count("\n") == 1
    printed = run("subset", out, "--out", tmp_path / "small", "--images-per-class", 2, "--copy")
    assert printed.startswith("4 images in 2 classes")
    assert not any(file.is_symlink() for file in (tmp_path / "small").rglob("*"))


def test_json_for_scripts(generated):
    facts = json.loads(run("check", generated, "--format", "json"))
    total = sum(file.stat().st_size for file in generated.glob("*/*.jpg"))
    assert facts["mean_bytes"] == round(total / 18)
    assert {name: facts[name] for name in ("path", "classes", "images", "checked")} == {
        "path": str(generated),
        "classes": 3,
        "images": 18,
        "checked": 18,
    }


def test_fetch_tells_of_the_training_split(generated, tmp_path):
    archive = tmp_path / "small.tgz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(generated, "any-name/train")
    checksum = hashlib.md5(archive.read_bytes()).hexdigest()
    with serving(archive.read_bytes(), "small.tgz") as server:
        where = ("--out", tmp_path / "data", "--url", server.url, "--checksum", checksum)
        printed = run("fetch", *where, "--format", "json")
    assert json.loads(printed)["path"] == str(tmp_path / "data" / "small" / "train")
