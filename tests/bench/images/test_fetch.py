import errno
import hashlib
import io
import socket
import tarfile
from pathlib import Path

import pytest
from range_server import serving
from refusals import refusal

from bench.errors import UserError
from bench.images import check_image_folder
from bench.images.fetch import CHUNK_BYTES, PUBLISHED, fetch_imagenette

NAME = "imagenette2-320.tgz"
PART = f"{NAME}.part"


def packed(*folders, member=None):
    """A tar archive of (folder, name in the archive) pairs, and of a lone member."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w:gz") as tar:
        for folder, name in folders:
            tar.add(folder, name)
        if member is not None:
            member.size = 4 * member.isreg()
            tar.addfile(member, io.BytesIO(b"evil"))
    return file.getvalue()


@pytest.fixture(scope="module")
def archive(generated):
    return packed(*((generated, f"imagenette2-320/{split}") for split in ("train", "val")))


@pytest.fixture
def server(archive):
    with serving(archive, NAME) as running:
        yield running


def fetch(server, out, **options):
    checksum = hashlib.md5(server.body).hexdigest()
    return fetch_imagenette(out, **{"url": server.url, "checksum": checksum, **options})


def assert_whole(folder, generated):
    for split in ("train", "val"):
        assert check_image_folder(folder / split) == check_image_folder(generated)
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]


def test_published_addresses_are_torchvisions():
    from torchvision.datasets import Imagenette

    known = {size.removesuffix("px"): entry for size, entry in Imagenette._ARCHIVES.items()}
    assert known == PUBLISHED


def test_fetches_and_unpacks_once(server, tmp_path, generated):
    leftover = tmp_path / ".imagenette2-320.unpacking" / "imagenette2-320" / "train" / "class_009"
    leftover.mkdir(parents=True)  # of an interrupted unpacking
    seen = []
    folder = fetch(server, tmp_path, on_bytes=lambda have, total: seen.append((have, total)))
    assert folder == tmp_path / "imagenette2-320"
    assert_whole(folder, generated)
    assert seen[-1] == (len(server.body), len(server.body))
    assert fetch(server, tmp_path) == folder
    assert server.ranges == [None]


def test_a_dropped_transfer_is_continued_by_the_next_call(server, tmp_path, generated):
    server.script = ["drop"]
    assert "run the same command again, which continues" in refusal(fetch, server, tmp_path)
    kept = (tmp_path / PART).stat().st_size
    half = len(server.body) // 2
    assert half - CHUNK_BYTES <= kept <= half
    assert_whole(fetch(server, tmp_path), generated)
    assert server.ranges == [None, f"bytes={kept}-"]


@pytest.mark.parametrize(("held", "script"), [(0, "no length"), (1000, "no ranges"), (None, "")])
def test_whatever_was_there_the_file_is_whole(server, tmp_path, generated, held, script):
    (tmp_path / PART).write_bytes(server.body[:held])
    server.script = [script]
    assert_whole(fetch(server, tmp_path), generated)


def test_what_was_there_of_another_file_is_found_out_by_the_checksum(server, tmp_path, generated):
    (tmp_path / PART).write_bytes(b"another file")
    assert "does not have the checksum" in refusal(fetch, server, tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert_whole(fetch(server, tmp_path), generated)


def test_no_network_and_no_such_file(server, tmp_path):
    server.script = [404]
    assert "404" in refusal(fetch, server, tmp_path)
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/{NAME}"
        with pytest.raises(UserError, match=r"refused.*mlproject dataset generate"):
            fetch_imagenette(tmp_path, url=url)


def test_wrong_checksum_unpacks_nothing(server, tmp_path, generated):
    message = refusal(fetch, server, tmp_path, checksum="0" * 32)
    assert "does not have the checksum 000" in message
    assert list(tmp_path.iterdir()) == []
    assert_whole(fetch(server, tmp_path), generated)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("checksum", "abc", "give an MD5"),
        ("checksum", "g" * 32, "give an MD5"),
        ("url", "http://mirror.invalid/", "ends like imagenette2-320.tgz"),
        ("url", "http://mirror.invalid/my data.tgz", "ends like imagenette2-320.tgz"),
        ("url", "http://mirror.invalid/..", "'http://mirror.invalid/..': names no archive"),
        ("url", "no-address.tgz", "'no-address.tgz'"),
    ],
)
def test_what_no_server_need_be_asked_for(server, tmp_path, option, value, words):
    assert words in refusal(fetch, server, tmp_path, **{option: value})
    assert server.ranges == []


def test_disk_full_while_unpacking(server, tmp_path, generated, monkeypatch):
    written = []

    def fill(*_):
        written.append(1)
        if len(written) > 3:
            raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("tarfile.copyfileobj", fill)
        assert "No space left on device: make room" in refusal(fetch, server, tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == [NAME]  # verified, and kept
    assert_whole(fetch(server, tmp_path), generated)
    assert server.ranges == [None]


def hostile(name, kind=tarfile.REGTYPE, target=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "member",
    [
        hostile("../evil.jpg"),
        hostile("imagenette2-320/../../evil.jpg"),
        hostile("/tmp/evil-member-of-an-archive.jpg"),
        hostile("imagenette2-320/link", tarfile.SYMTYPE, "/etc"),
        hostile("imagenette2-320/hard", tarfile.LNKTYPE, "../../outside.txt"),
        hostile("imagenette2-320/null", tarfile.CHRTYPE),
    ],
    ids=lambda member: member.name,
)
def test_hostile_archives(generated, tmp_path, member):
    (tmp_path / "outside.txt").write_text("untouched")
    out = tmp_path / "a" / "b"
    good = (generated / "class_000" / "00000.jpg", "imagenette2-320/good.jpg")
    with serving(packed(good, member=member), NAME) as server:
        assert f"member {member.name!r} is a link" in refusal(fetch, server, out)
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["a", "b", NAME, "outside.txt"]
    assert not Path("/tmp/evil-member-of-an-archive.jpg").exists()


@pytest.mark.parametrize("damage", ["text", "half", "flipped"])
def test_damaged_archives(archive, tmp_path, damage):
    flipped = bytearray(archive)
    flipped[12] ^= 0xFF  # in the head of the first deflate block
    body = {"text": b"<html>", "half": archive[: len(archive) // 2], "flipped": bytes(flipped)}
    with serving(body[damage], NAME) as server:
        assert "not a whole tar archive" in refusal(fetch, server, tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == [NAME]
