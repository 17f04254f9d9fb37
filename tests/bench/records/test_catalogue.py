"""All words of the catalogue: each sentence is filled, and the page of verdicts is made of it."""

import re
from pathlib import Path
from string import Formatter

import pytest

from bench.records import Finding
from bench.records.base import catalogue, tomllib

PROJECT = Path(__file__).parents[3]
PARTS = tomllib.loads((PROJECT / "bench/records/findings.toml").read_text(encoding="utf-8"))

RECORDED = catalogue("run", "roof", "profile")


def facts_of(says):
    """A number for each fact that has a format, and a word for the others."""
    fields = [(name, form) for _, name, form, _ in Formatter().parse(says) if name]
    return {name: 2.5 if form else f"<{name}>" for name, form in fields}


@pytest.mark.parametrize("code", RECORDED)
def test_a_sentence_is_filled_with_its_facts_and_whole_without_those_in_brackets(code):
    row = RECORDED[code]
    facts = facts_of(row["says"])
    whole = Finding.of(code, **facts)
    assert whole.level == row["level"]
    assert all(f"<{name}>" in whole.sentence or "2" in whole.sentence for name in facts)
    least = facts_of(re.sub(r"\[[^]]*\]", "", row["says"]))
    for sentence in (whole.sentence, Finding.of(code, **least).sentence):
        assert not re.search(r"[{}\[\]]|\.\.|  ", sentence)
    assert Finding.model_validate_json(whole.model_dump_json()) == whole


def test_a_record_of_before_keeps_its_sentence_and_one_of_a_newer_version_shows_its_facts():
    old = {"code": "drift", "level": "suspect", "message": "it was slower"}
    assert Finding.model_validate(old).sentence == "it was slower"
    newer = {"code": "moonlight", "level": "note", "facts": {"lux": 0.1}}
    assert Finding.model_validate(newer).sentence == "moonlight {'lux': 0.1}"
    assert Finding(code="outliers", level="note", facts={"slow": 1}).sentence.startswith("outliers")


def rows_of(part):
    yield "| code | level | meaning | what to do |"
    yield "|---|---|---|---|"
    for codes, row in PARTS[part].items():
        names = ", ".join(f"`{code}`" for code in codes.split(", "))
        levels = "; ".join(filter(None, [row["level"], row.get("unless")]))
        sentence = re.sub(r"\[[^]]*\]", "", re.sub(r"{[^}]*}", "…", row["says"]))
        meaning = row.get("when", sentence)
        yield f"| {names} | {levels} | {meaning} | {row.get('do', 'nothing')} |"


def kinds():
    yield "| kind | reported when |"
    yield "|---|---|"
    for kind, row in PARTS["analysis"].items():
        yield f"| {kind} | {row['when']} |"


@pytest.mark.parametrize("part", PARTS)
def test_the_pages_of_verdicts_and_kinds_are_made_of_the_catalogue(request, part):
    path = PROJECT / ("docs/report.md" if part == "analysis" else "docs/record.md")
    page = path.read_text(encoding="utf-8")
    table = "\n".join(kinds() if part == "analysis" else rows_of(part))
    before, begin, rest = page.partition(f"<!-- findings: {part} -->\n")
    _, end, after = rest.partition("\n<!-- end -->")
    made = "".join((before, begin, table, end, after))
    if request.config.getoption("--golden"):
        path.write_text(made, encoding="utf-8")
    else:
        assert made == page, "make it again: pytest --golden tests/bench/records/test_catalogue.py"
