"""Run matrices: what they mean, and one clear message for everything that is wrong with one."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from refusals import refusal

from bench.errors import UserError
from campaigns.matrix import MANY_RUNS, MATRICES, read_matrix

PROJECT = Path(__file__).resolve().parents[2]
DESCRIPTION = (PROJECT / "docs" / "sweeps.md").read_text(encoding="utf-8")


def written(tmp_path, text):
    path = tmp_path / "matrix.yaml"
    path.write_text(text)
    return path


def refused(tmp_path, text, **options):
    path = written(tmp_path, text)
    start, message = refusal(read_matrix, path, **options).split(": ", 1)
    assert start == f"matrix={str(path)!r}"
    return message


def runs_of(matrix):
    return sum(block.repeats * len(block.configs) for block in matrix.blocks)


def test_a_block_is_the_product_of_its_lists(tmp_path):
    path = written(
        tmp_path,
        """
name: two
repeats: 2
defaults: {iters: 7}
blocks:
  - name: small
    arch: [resnet18, vgg16]
    batch_size: [4, 8]
  - arch: resnet50
    repeats: 5
    iters: 9
""",
    )
    matrix = read_matrix(path)
    assert matrix.name == "two"
    small, big = matrix.blocks
    assert [(c.arch, c.batch_size, c.iters) for c in small.configs] == [
        *(("resnet18", 4, 7), ("resnet18", 8, 7), ("vgg16", 4, 7), ("vgg16", 8, 7))
    ]
    assert (small.name, small.repeats) == ("small", 2)
    assert (big.name, big.repeats, big.configs[0].iters) == ("block 2", 5, 9)
    assert runs_of(matrix) == 2 * 4 + 5


def test_excludes_take_out_what_fits_all_their_fields(tmp_path):
    path = written(
        tmp_path,
        """
exclude:
  - {arch: vgg16, batch_size: [64, 128]}
blocks:
  - arch: [resnet18, vgg16]
    batch_size: [32, 64, 128]
    exclude: {arch: resnet18, batch_size: 32}
""",
    )
    (block,) = read_matrix(path).blocks
    left = {(config.arch, config.batch_size) for config in block.configs}
    assert left == {("resnet18", 64), ("resnet18", 128), ("vgg16", 32)}


def test_an_exclude_means_the_default_of_a_field_that_a_block_leaves_out(tmp_path):
    path = written(
        tmp_path,
        """
exclude: {precision: fp32, arch: vgg16}
blocks:
  - {arch: [resnet18, vgg16]}
  - {arch: vgg16, precision: [fp32, amp]}
""",
    )
    left = [(config.arch, config.precision) for block in read_matrix(path).blocks
            for config in block.configs]  # fmt: skip
    assert left == [("resnet18", "fp32"), ("vgg16", "amp")]


def test_weak_scaling_keeps_each_devices_batch_and_strong_scaling_that_of_the_job(tmp_path):
    path = written(
        tmp_path,
        """
defaults: {devices: [1, 2, 4], batch_size: 8}
blocks:
  - {scaling: weak}
  - {scaling: strong}
""",
    )
    weak, strong = ([(c.devices, c.batch_size) for c in block.configs]
                    for block in read_matrix(path).blocks)  # fmt: skip
    assert weak == [(1, 8), (2, 8), (4, 8)]
    # with the batch of each device on one, which tells what smaller batches cost
    assert sorted(strong) == [(1, 2), (1, 4), (1, 8), (2, 4), (4, 2)]


def test_overrides_replace_a_field_everywhere(tmp_path):
    path = written(tmp_path, "blocks:\n  - {arch: [resnet18, vgg16], iters: [5, 10]}\n")
    (block,) = read_matrix(path, {"iters": "3"}).blocks
    assert [(config.arch, config.iters) for config in block.configs] == [
        ("resnet18", 3),
        ("vgg16", 3),
    ]


@pytest.mark.parametrize("path", sorted(MATRICES.iterdir()), ids=lambda path: path.stem)
def test_the_matrices_that_come_with_the_project_are_valid_and_described(path):
    matrix = read_matrix(path)
    assert path.name == f"{matrix.name}.yaml"
    assert runs_of(matrix) > 0
    assert f"\n| `{matrix.name}` | " in DESCRIPTION


#: Written out it would have 2^40 words.
DOUBLED = "a0: &a0 [x, x]\n" + "".join(
    f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 40)
)
DOUBLED += "blocks: [{arch: *a39}]\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", ["mapping", "blocks"]),
        ("- 1\n", ["mapping"]),
        ("blocks: 3\n", ["blocks='3'", "list"]),
        ("name: x\n", ["blocks"]),
        ("name: x\nblocks: []\n", ["blocks", "at least 1"]),
        ("bloks: []\n", ["'bloks'", "did you mean blocks"]),
        ("roofs: 1\nblocks: [{arch: vgg16}]\n", ["roofs='1'", "'true' or 'false'"]),
        ("blocks:\n  - arhc: vgg16\n", ["blocks.1: 'arhc'", "did you mean arch"]),
        ("blocks:\n  - qqq: 1\n", ["blocks.1", "'qqq'", "batch_size"]),
        (
            "blocks:\n  - {scaling: strong, devices: [1, 2], batch_size: 9}\n",
            ["blocks.1: batch_size=9", "devices=2", "a multiple of 2"],
        ),
        (
            "blocks:\n  - {scaling: strong, devices: [1, 2]}\n",
            ["blocks.1: batch_size=auto", "give a number"],
        ),
        (
            "blocks:\n  - {scaling: weak, devices: [2, 4]}\n",
            ["blocks.1: devices=[2, 4]", "one device", "[1, 2, 4]"],
        ),
        ("blocks:\n  - {scaling: flat, devices: [1, 2]}\n", ["scaling='flat'", "'weak'"]),
        ("scaling: weak\nblocks: [{devices: [1, 2]}]\n", ["'scaling'", "into a block"]),
        ("blocks:\n  - arch: []\n", ["blocks.1: arch: the list is empty"]),
        ("blocks:\n  - arch: {a: b}\n", ["blocks.1: arch", "value or a list"]),
        ("blocks:\n  - arch: [[resnet18]]\n", ["blocks.1: arch", "value or a list"]),
        ("blocks:\n  - resnet18\n", ["blocks.1='resnet18'", "fields and their values"]),
        ("blocks:\n  - arch: resnet18\n    repeat: 2\n", ["blocks.1", "did you mean repeats"]),
        ("blocks:\n  - campaign: x\n", ["blocks.1: 'campaign'"]),
        ("repeats: 0\nblocks: [{arch: vgg16}]\n", ["repeats='0'", "equal to 1"]),
        ("blocks:\n  - {arch: vgg16, repeats: 1001}\n", ["blocks.1.repeats='1001'", "1000"]),
        ("repeats: 1.5\nblocks: [{arch: vgg16}]\n", ["repeats='1.5'"]),
        ("seed: -1\nblocks: [{arch: vgg16}]\n", ["seed='-1'"]),
        ("seed: 4294967296\nblocks: [{arch: vgg16}]\n", ["seed='4294967296'"]),
        ("defaults: {arch: x}\nblocks: [{seed: 1}]\n", ["defaults: arch='x'"]),
        ("blocks:\n  - {phases: true, cuda_graphs: true}\n", ["blocks.1", "leave out phases"]),
        ("blocks:\n  - {nodes: 2, batch_size: 8}\n", ["blocks.1", "nodes=2", "one machine"]),
        ("blocks: [{arch: vgg16, exclude: {arch: resnet18}}]\n", ["blocks.1.exclude.1", "fits"]),
        ("exclude: {seed: 1}\nblocks: [{arch: vgg16}]\n", ["exclude.1", "no configuration"]),
        ("blocks:\n  - arch: vgg16\n    exclude: {arch: vgg16}\n", ["blocks.1", "excluded"]),
        ("blocks:\n  - arch: vgg16\n    arch: vgg16\n", ["line 3", "second time"]),
        ("blocks: &all [*all]\n", ["line 1", "recursive"]),
        (DOUBLED, ["blocks.1: arch: give a value or a list"]),
        ("blocks: !!python/object/apply:os.system ['true']\n", ["blocks.1='true'"]),
        ("blocks: [\n", ["line 2", "not YAML"]),
        ("[" * 5000, ["nested"]),
        ("a: b\n---\nc: d\n", ["line 2", "not YAML"]),
        ("? [a]\n: b\nblocks: [{arch: vgg16}]\n", ["line 1", "not YAML"]),
        ("\0", ["not YAML"]),
    ],
)
def test_what_is_wrong_is_said_in_one_line_with_its_place(tmp_path, text, words):
    message = refused(tmp_path, text)
    for word in words:
        assert word in message


def test_a_file_that_cannot_be_read_is_one_line(tmp_path):
    for path, word in ((tmp_path / "none.yaml", "No such file"), (tmp_path, "directory")):
        with pytest.raises(UserError, match=word):
            read_matrix(path)
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9\n")
    with pytest.raises(UserError, match="UTF-8"):
        read_matrix(tmp_path / "latin.yaml")
    (tmp_path / "huge.yaml").write_bytes(b"#" * (2**20 + 1))
    with pytest.raises(UserError, match="larger"):
        read_matrix(tmp_path / "huge.yaml")


@pytest.mark.slow
def test_thousands_of_runs_need_a_yes_and_millions_are_never_made(tmp_path):
    seeds = list(range(MANY_RUNS // 2 + 1))
    text = f"repeats: 2\nblocks:\n  - arch: resnet18\n    seed: {seeds}\n"
    assert "2,002 runs" in refused(tmp_path, text)
    assert runs_of(read_matrix(written(tmp_path, text), many=True)) == 2002
    wide = "\n".join(f"    {name}: {list(range(1, 301))}" for name in ("seed", "iters", "threads"))
    message = refused(tmp_path, f"blocks:\n  - arch: resnet18\n{wide}\n", many=True)
    assert "27,000,000 runs" in message
    assert "--yes" not in message


@given(st.text(alphabet=st.sampled_from("abc: -[]{}&*!?|>'\"\n\t#,01"), max_size=80))
def test_no_text_is_more_than_one_message(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("matrix") / "m.yaml"
    path.write_text("blocks:\n  - arch: vgg16\n" + text)
    try:
        runs, said = runs_of(read_matrix(path)), ""
    except UserError as error:
        runs, said = 0, str(error)
    assert runs >= 1 or (said and "\n" not in said)
