"""A comparison as the comment on a pull request: the verdict first, what is long folded away."""

from __future__ import annotations

from collections.abc import Sequence

from analysis.comparison.judgement import METRICS, Comparison, Gate
from analysis.comparison.pairs import Pairing
from analysis.comparison.shown import comparison_table, notes, without_runs
from analysis.runs.quantities import counted, percent
from analysis.table import Table, markdown_text

#: Of a table, and of a list: more are folded.
_FEW = 8
#: A comment on GitHub holds 65,536 characters.
_MOST = 150


def comment(
    comparisons: Sequence[Comparison],
    pairing: Pairing,
    gate: Gate,
    *,
    sides: tuple[str, str],
    threshold: float,
) -> str:
    """Return Markdown as GitHub and GitLab show it.

    `sides` are A and B as they were named, `threshold` the share from which on a change counts.
    """
    metric = METRICS[pairing.metric]
    a, b = map(markdown_text, sides)
    parts = [
        f"**{markdown_text(gate.sentence)}**",
        f"B is {b}, A is {a}, by {markdown_text(metric.name)} ({metric.unit}, {metric.better} is "
        f"better); a change counts from {percent(threshold)} on.",
    ]
    failing = [one for one in comparisons if one.word in gate.failed]
    crashed = pairing.crashed if "crashed" in gate.failed else ()
    if len(comparisons) + len(pairing.crashed) <= _FEW:
        parts.append(_rows(comparison_table(comparisons, pairing)))
    else:
        if failing or crashed:
            parts.append(_rows(comparison_table(failing, pairing, crashed)))
        others = [one for one in comparisons if one.word not in gate.failed]
        rest = comparison_table(others, pairing, () if crashed else pairing.crashed)
        if rest.rows:
            named = "other " if failing or crashed else ""
            parts.append(_folded(counted(len(rest.rows), f"{named}configuration"), _rows(rest)))
    lines = [f"- {markdown_text(line)}" for line in notes(comparisons, pairing)]
    if lines:
        more = [f"- and {len(lines) - _MOST} more"] * (len(lines) > _MOST)
        text = "\n".join(lines[:_MOST] + more)
        parts.append(text if len(lines) <= _FEW else _folded(f"{len(lines)} notes", text))
    return "\n\n".join(parts) + "\n"


def _rows(table: Table) -> str:
    """The table alone, without the number and the title that it has in a report."""
    lines = without_runs(table).markdown().splitlines()[2:]
    more = len(table.rows) - _MOST
    return "\n".join(lines[: _MOST + 2]) + (f"\n\nand {more} more rows" if more > 0 else "")


def _folded(summary: str, text: str) -> str:
    return f"<details>\n<summary>{summary}</summary>\n\n{text}\n\n</details>"
