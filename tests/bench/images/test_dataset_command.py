import hashlib
import json
import tarfile
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread

import pytest
from click.testing import CliRunner
from refusals import refusal

from bench.images import check_image_folder
from commands import dataset
from commands.dataset import PUBLISHED, Dataset


def run(*arguments):
    result = CliRunner().invoke(Dataset.command(), [str(argument) for argument in arguments])
    if result.exception is not None:
        raise result.exception
    return result


def test_generate_and_subset_print_one_line(tmp_path):
    out = tmp_path / "photos"
    printed = run("generate", "--out", out, "--classes", 2, "--images-per-class", 3)
    assert printed.stderr == ""  # no progress bar where there is no terminal
    assert printed.stdout.startswith("6 images in 2 classes, ")
    assert printed.stdout.endswith(f" pixels on average: {out}\n")
    assert printed.stdout.count("\n") == 1
    printed = run("subset", out, "--out", tmp_path / "small", "--images-per-class", 2, "--copy")
    assert printed.stdout.startswith("4 images in 2 classes")
    assert not any(file.is_symlink() for file in (tmp_path / "small").rglob("*"))


def test_published_addresses_are_torchvisions():
    from torchvision.datasets import Imagenette

    published = {size.removesuffix("px"): entry for size, entry in Imagenette._ARCHIVES.items()}
    assert published == PUBLISHED


class Handler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def address(tmp_path):
    """Of a server of the test's folder."""
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=tmp_path)) as server:
        server.handle_error = lambda *_: None  # who asks where the file is hangs up
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def archive(generated, tmp_path):
    file = tmp_path / "small.tgz"
    with tarfile.open(file, "w:gz") as tar:
        for split in ("train", "val"):
            tar.add(generated, f"any-name/{split}")
    return file


def md5(file):
    return hashlib.md5(file.read_bytes()).hexdigest()


def fetch(address, file, out, checksum=None):
    url = f"{address}/{file.name}"
    how = ("--out", out, "--url", url, "--checksum", checksum or md5(file))
    return json.loads(run("fetch", *how, "--format", "json").stdout)["path"]


def test_an_archive_is_unpacked_whole_and_once(address, archive, generated, tmp_path):
    out = tmp_path / "data"
    (out / ".small.unpacking" / "any-name" / "train" / "class_009").mkdir(parents=True)
    (out / "small.tgz").write_bytes(archive.read_bytes()[:1000])  # both of an interrupted call
    assert fetch(address, archive, out) == str(out / "small" / "train")
    for split in ("train", "val"):
        assert check_image_folder(out / "small" / split) == check_image_folder(generated)
    assert [entry.name for entry in out.iterdir()] == ["small"]
    archive.unlink()  # it is not asked for again
    assert fetch(address, archive, out, "0" * 32) == str(out / "small" / "train")


@pytest.mark.parametrize("damage", ["checksum", "absent", "text", "half", "link", "tops"])
def test_an_archive_that_is_not_the_published_one_makes_no_folder(
    address, archive, tmp_path, damage
):
    checksum, whole = None, archive.read_bytes()
    if damage == "checksum":
        checksum = "0" * 32
    elif damage == "absent":
        archive.unlink()
        checksum = "0" * 32
    elif damage == "link":
        with tarfile.open(archive, "w:gz") as tar:
            member = tarfile.TarInfo("../evil.jpg")
            tar.addfile(member)
    elif damage == "tops":
        with tarfile.open(archive, "w:gz") as tar:
            for name in ("one.txt", "two.txt"):
                tar.addfile(tarfile.TarInfo(name))
    else:
        archive.write_bytes(whole[: len(whole) // 2] if damage == "half" else b"<html>")
    message = refusal(fetch, address, archive, tmp_path / "data", checksum)
    assert f"url='{address}/small.tgz': " in message
    assert "mlproject dataset generate" in message
    assert ".:" not in message.removeprefix(f"url='{address}")
    assert ("2 files and folders" in message) is (damage == "tops")
    assert not (tmp_path / "data" / "small").exists()
    assert not list(tmp_path.rglob("evil.jpg"))


def test_an_address_without_the_name_of_an_archive_is_refused(tmp_path):
    for url in ("http://127.0.0.1:1/", "no-address.tgz", "http://127.0.0.1:1/.."):
        message = refusal(dataset._fetched, url, "0" * 32, str(tmp_path / "data"))
        assert f"url={url!r}: " in message
