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
from bench.images.fetch import ATTEMPTS, CHUNK_BYTES, PUBLISHED, fetch_imagenette

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


@pytest.fixture
def pauses(monkeypatch):
    """The pauses asked for between attempts; none is taken."""
    taken = []
    monkeypatch.setattr("time.sleep", taken.append)
    return taken


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


def test_a_dropped_transfer_goes_on_where_it_stopped_and_so_does_the_next_call(
    server, tmp_path, generated, pauses
):
    server.script = ["drop", "drop"] + ["drop at once"] * ATTEMPTS
    message = refusal(fetch, server, tmp_path)
    part = tmp_path / PART
    assert f"broken off at {part.stat().st_size} bytes" in message
    assert "run the same command again" in message
    assert pauses == [1.0, 1.0, 2.0, 4.0, 8.0]
    starts = [int(asked[len("bytes=") : -1]) for asked in server.ranges[1:3]]
    half = len(server.body) // 2
    assert half - CHUNK_BYTES <= starts[0] <= half < starts[1] < len(server.body)
    kept = part.stat().st_size
    assert_whole(fetch(server, tmp_path), generated)
    assert server.ranges[-1] == f"bytes={kept}-"


@pytest.mark.parametrize(
    ("held", "script", "asked"),
    [
        (0, ["no length"], [0]),
        (0, [503], [0, 0]),
        (1000, ["no ranges"], [1000]),
        (1000, ["another range"], [1000, 0]),  # not appended
        ("all", [], ["all"]),
        ("all and more", [], ["all and more", 0]),
    ],
)
def test_whatever_was_there_and_however_it_comes_the_file_is_whole(
    server, tmp_path, generated, pauses, held, script, asked
):
    sizes = {"all": len(server.body), "all and more": len(server.body) + 4}
    (tmp_path / PART).write_bytes((server.body + b"more")[: sizes.get(held, held)])
    server.script = script
    assert_whole(fetch(server, tmp_path), generated)
    starts = [sizes.get(start, start) for start in asked]
    assert server.ranges == [f"bytes={start}-" if start else None for start in starts]


@pytest.mark.parametrize(
    ("always", "words", "requests"),
    [
        (404, "answered 404", 1),
        (500, "answered 500", ATTEMPTS),
        ("no ranges, drop", "broken off", ATTEMPTS),
    ],
)
def test_a_server_that_never_gives_it_is_given_up(
    server, tmp_path, pauses, always, words, requests
):
    server.script = [always] * 20
    message = refusal(fetch, server, tmp_path)
    assert words in message
    assert server.url in message
    assert len(server.ranges) == requests


def test_no_network(tmp_path, pauses):
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}/{NAME}"
        with pytest.raises(UserError, match=r"refused.*mlproject dataset generate"):
            fetch_imagenette(tmp_path, url=url)
    with pytest.raises(UserError, match=r"(?i)resol.*mlproject dataset generate"):
        fetch_imagenette(tmp_path, url=f"http://nowhere.invalid/{NAME}")
    assert pauses == []


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
    assert sorted(entry.name for entry in tmp_path.rglob("*")) == ["a", "b", "outside.txt"]
    assert not Path("/tmp/evil-member-of-an-archive.jpg").exists()


@pytest.mark.parametrize("damage", ["text", "half", "flipped"])
def test_damaged_archives(archive, tmp_path, damage):
    flipped = bytearray(archive)
    flipped[12] ^= 0xFF  # in the head of the first deflate block
    body = {"text": b"<html>", "half": archive[: len(archive) // 2], "flipped": bytes(flipped)}
    with serving(body[damage], NAME) as server:
        assert "not a whole tar archive" in refusal(fetch, server, tmp_path)
    assert list(tmp_path.iterdir()) == []
