"""Pictures of results. Static ones take an Axes and neither open nor save anything.

A roofline is a scene first (of runs, or of one profile's ops or kernels), which `draw_scene` draws
on an Axes and `interactive_figure` for a page. `draw_roofline` and `interactive_roofline` do both
steps for runs.
"""

from analysis.figures.axes import save_figure, single_axes
from analysis.figures.page import figure_html
from analysis.figures.rooflines.interactive_scene import interactive_figure, interactive_roofline
from analysis.figures.rooflines.kernel_scene import kernel_scene
from analysis.figures.rooflines.op_scene import op_scene
from analysis.figures.rooflines.plot import plot_roofline
from analysis.figures.rooflines.run_scene import run_scene
from analysis.figures.rooflines.scene import Scene
from analysis.figures.rooflines.static_scene import draw_roofline, draw_scene
from analysis.figures.style import model_colours

__all__ = [
    "Scene",
    "draw_roofline",
    "draw_scene",
    "figure_html",
    "interactive_figure",
    "interactive_roofline",
    "kernel_scene",
    "model_colours",
    "op_scene",
    "plot_roofline",
    "run_scene",
    "save_figure",
    "single_axes",
]
