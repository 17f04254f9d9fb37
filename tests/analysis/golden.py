"""Texts of numbers and charts for the files in tests/golden: nine digits, what is not the default.

Further digits differ between processors.
"""

import base64
import json
import re
from dataclasses import MISSING, fields, replace

import numpy as np


def rounded(text):
    """Numbers with a long fraction, to nine digits."""
    return re.sub(r"-?\d+\.\d{6,}(e[+-]\d+)?", lambda found: f"{float(found.group()):.9g}", text)


def plain(value):
    """Plotly's data with arrays as lists and numbers of nine digits."""
    if isinstance(value, dict):
        if "bdata" in value:
            array = np.frombuffer(base64.b64decode(value["bdata"]), value["dtype"])
            return plain(array.tolist())
        return {name: plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [plain(one) for one in value]
    return float(f"{value:.9g}") if isinstance(value, float) else value


def _given(one):
    """A part of a chart without what it does not say."""
    return {
        field.name: value
        for field in fields(one)
        if (value := getattr(one, field.name)) != field.default or field.default is MISSING
    }


def _line(what, values):
    return f"  {what} {json.dumps(plain(values), ensure_ascii=False, default=float)}"


def scene(chart):
    """A chart as data: a line for each of its panels, axes, series, bands and legend's entries."""
    lines = [f"{chart.width_in:g} x {chart.height_in:.4g} in, {chart.columns} beside each other"]
    for panel in chart.panels:
        of = _given(panel)
        parts = {name: of.pop(name, ()) for name in ("x", "y", "series", "bands", "legend")}
        lines.append(_line("panel", of))
        lines += [_line(name, _given(parts[name])) for name in "xy"]
        for name in ("series", "bands"):
            lines += [_line(name, _given(one)) for one in parts[name]]
        for one in parts["legend"]:  # only its look is drawn
            look = replace(one, xs=(), ys=(), names=(), hover=())
            lines.append(_line("legend", _given(look)))
    return "\n".join(lines) + "\n"
