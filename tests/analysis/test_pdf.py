"""The report as PDF: by a browser that is there, refused in one line where none is."""

import shutil
import sys

import pytest
from programs import program

from analysis.report import print_pdf
from analysis.report.write import BROWSERS
from bench.errors import UserError

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="scripted browsers are scripts")


def browser(folder, body):
    program(folder, "chromium", f"#!{sys.executable}\nimport sys\n{body}")


@pytest.fixture
def page(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    html = tmp_path / "report.html"
    html.write_text("<p>x</p>", encoding="utf-8")
    return html


def test_a_browser_prints_the_page_beside_it(tmp_path, page):
    browser(
        tmp_path,
        "out = next(a for a in sys.argv if a.startswith('--print-to-pdf=')).partition('=')[2]\n"
        "open(out, 'w').write(sys.argv[-1])",
    )
    pdf = print_pdf(page)
    assert pdf == tmp_path / "report.pdf"
    assert pdf.read_text("utf-8") == page.as_uri()


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("sys.exit('no display')", r"made none \(no display\)"),
        ("", r"made none \(it said nothing\)"),
    ],
)
def test_a_browser_that_fails_is_one_line(tmp_path, page, body, message):
    browser(tmp_path, body)
    with pytest.raises(UserError, match=message):
        print_pdf(page)


def test_no_tool_is_one_line(page):
    with pytest.raises(UserError, match="neither Chromium, Chrome, Edge nor WeasyPrint"):
        print_pdf(page)


@pytest.mark.slow
def test_a_real_browser_makes_a_real_pdf(tmp_path):
    if not any(map(shutil.which, (*BROWSERS, "weasyprint"))):
        pytest.skip("no browser here: apt install chromium")
    html = tmp_path / "report.html"
    html.write_text("<h1>Report</h1>", encoding="utf-8")
    assert print_pdf(html).read_bytes()[:5] == b"%PDF-"
