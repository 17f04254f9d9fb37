"""Pictures of results. Static ones take an Axes and neither open nor save anything."""

from analysis.figures.canvas import save_figure, single_axes
from analysis.figures.interactive import interactive_roofline, interactive_roofline_html
from analysis.figures.roofline import draw_roofline
from analysis.figures.style import model_colours

__all__ = [
    "draw_roofline",
    "interactive_roofline",
    "interactive_roofline_html",
    "model_colours",
    "save_figure",
    "single_axes",
]
