"""What a person adds to a report and edits in it, and how it is printed."""

import hashlib
import shutil
import sys
from pathlib import Path

import factories as make
import pytest
from programs import program

from analysis import place_runs
from analysis.report.figures import file_names
from analysis.report.write import (
    PRINTERS,
    begin_report,
    end_report,
    front_matter,
    print_pdf,
    write_report,
)
from bench.errors import UserError

NAMES = ("report.html", "report.md", "tables/summary.tex")
NOTES = """# Aim

Is it? <script>alert(1)</script> [no](javascript:alert(1)) [yes](https://example.org)

Why
---

| a |
| - |
| 1 |

```sh
# no heading
```
"""


def test_names_of_files_last_and_differ():
    labels = ["amd-epyc (1)", "amd-epyc", "AMD-EPYC", "a/b\\..", "..", "x" * 200]
    assert file_names(labels) == [
        "amd-epyc-1", "amd-epyc", "AMD-EPYC-2", "a-b", "unnamed", "x" * 80,
    ]  # fmt: skip


@pytest.mark.usefixtures("unpainted")
def test_title_author_and_notes_stand_in_both_forms_and_cannot_break_them(tmp_path):
    notes_file = tmp_path / "notes.md"
    notes_file.write_text(NOTES, encoding="utf-8")
    front = front_matter("a|b <b>*T*</b>", "A_\n<i>", notes_file)
    page = write_report(place_runs([make.run_record()], []), tmp_path / "r", front=front)
    html, markdown = (page.with_suffix(end).read_text("utf-8") for end in (".html", ".md"))
    assert markdown.startswith("# a\\|b &lt;b&gt;\\*T\\*&lt;/b&gt;\n\nA\\_ &lt;i&gt;\n")
    assert "<h1>a|b &lt;b&gt;*T*&lt;/b&gt;</h1>" in html
    for text, words in (
        (markdown, ("## Notes", "\n### Aim\n", "\n#### Why\n", "\n# no heading\n", "## Design")),
        (html, ('id="notes">Notes<', "<h3>Aim</h3>", "&lt;script&gt;alert(1)&lt;/script&gt;",
                'href="https://example.org"', "<h4>Why</h4>", "<td>1</td>", 'id="design">Design<')),
    ):  # fmt: skip
        places = [text.index(one) for one in words]
        assert places == sorted(places)
        assert 'href="javascript' not in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read as UTF-8 text"),
        (b"\xff\xfe", "cannot be read as UTF-8 text"),
        (b"text\n\n```sh\nmlproject run\n", "is not closed; close it"),
        (b"text\n\n<!-- later\n", "is not closed; close it"),
    ],
)
def test_notes_that_cannot_be_put_in_are_one_line(tmp_path, content, message):
    path = tmp_path / "notes.md"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=rf"^notes=.*notes.md.*{message}.*\Z"):
        front_matter(None, None, path)


def written(folder, text="ours", names=NAMES):
    """A folder as a report leaves it."""
    new = begin_report(folder)
    for name in names:
        (new / name).write_text(text, encoding="utf-8")
    end_report(new)
    (folder / "report.pdf").touch()
    return [folder / name for name in names]


def test_a_report_that_was_not_edited_is_replaced(tmp_path):
    folder, other = tmp_path / "r", tmp_path / "other.txt"
    page, _, table, _ = written(folder, names=(*NAMES, "tables/old.csv"))
    table.unlink()  # moved elsewhere by a person
    other.write_text("mine", encoding="utf-8")
    with (folder / "report.sha256").open("a") as sums:
        for name in (f"{other}", "../other.txt"):  # written by somebody else
            sums.write(f"{hashlib.sha256(b'mine').hexdigest()}  {name}\n")
    (begin_report(folder) / "tables" / "half.csv").touch()  # interrupted
    new = begin_report(folder)
    assert page.read_text("utf-8") == "ours"  # until the new one is whole
    (new / "report.html").write_text("newer", encoding="utf-8")
    end_report(new)
    assert other.exists()
    assert page.read_text("utf-8") == "newer"
    left = {path.name for path in folder.rglob("*") if path.is_file()}
    assert left == {"report.html", "report.sha256"}


@pytest.mark.parametrize("last", range(5))
def test_a_report_cut_short_leaves_a_whole_one_that_does_not_look_edited(
    tmp_path, monkeypatch, last
):
    """There are five renames: the sums of both, three files, the sums of the new one."""
    paths = written(tmp_path / "r", "older")
    real, renames = Path.replace, iter(range(last))

    def rename(path, target):
        next(renames)
        return real(path, target)

    monkeypatch.setattr(Path, "replace", rename)
    with pytest.raises(StopIteration):
        written(tmp_path / "r", "newer")
    monkeypatch.undo()
    newer = min(max(last - 1, 0), 3)
    texts = sorted(path.read_text("utf-8") for path in paths)
    assert texts == ["newer"] * newer + ["older"] * (3 - newer)
    written(tmp_path / "r", "newest")
    assert {path.read_text("utf-8") for path in paths} == {"newest"}


@pytest.mark.parametrize(
    ("edited", "lost"),
    [
        ("report.md", None),
        ("tables/summary.tex", None),
        ("figures/mine.png", None),
        ("report.md", "report.sha256"),
    ],
)
def test_a_report_that_was_edited_or_may_have_been_is_refused_and_kept(tmp_path, edited, lost):
    paths = written(tmp_path)
    (tmp_path / "figures").mkdir()
    (tmp_path / edited).write_text("ours and mine", encoding="utf-8")
    if lost:
        (tmp_path / lost).unlink()
    name = "report.html" if lost else edited
    with pytest.raises(UserError, match=f"{name} was not written by a report, or edited since"):
        begin_report(tmp_path)
    assert [path.read_text("utf-8")[:4] for path in paths] == ["ours"] * 3
    assert (tmp_path / edited).read_text("utf-8") == "ours and mine"


@pytest.mark.parametrize(
    ("name", "body", "message"),
    [
        ("msedge", "sys.argv[-2].removeprefix('--print-to-pdf=')", None),
        ("weasyprint", "sys.argv[2]", None),
        ("chromium", "sys.exit('no display')", r"made none \(no display\)"),
        ("chromium", "sys.exit()", r"made none \(it said nothing\)"),
        (None, "", "neither Chromium, Chrome, Edge nor WeasyPrint"),
    ],
)
def test_the_first_printer_prints_the_page_beside_it_or_fails_in_one_line(
    tmp_path, monkeypatch, name, body, message
):
    monkeypatch.setenv("PATH", str(tmp_path))
    page = tmp_path / "report.html"
    page.write_text("<p>x</p>", encoding="utf-8")
    if name is not None:
        program(tmp_path, name, f"#!{sys.executable}\nimport sys\nopen({body}, 'w').write('x')")
    if message is None:
        assert print_pdf(page).read_text("utf-8") == "x"
        assert (tmp_path / "report.pdf").is_file()
    else:
        with pytest.raises(UserError, match=message):
            print_pdf(page)


@pytest.mark.slow
def test_a_real_browser_makes_a_real_pdf(tmp_path):
    if not any(map(shutil.which, PRINTERS)):
        pytest.skip("no browser here: apt install chromium")
    html = tmp_path / "report.html"
    html.write_text("<h1>Report</h1>", encoding="utf-8")
    assert print_pdf(html).read_bytes()[:5] == b"%PDF-"
