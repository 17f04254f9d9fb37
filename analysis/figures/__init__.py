"""Pictures of results. Static ones take an Axes and neither open nor save anything."""

from analysis.figures.canvas import save_figure, single_axes
from analysis.figures.forest import draw_forest, forest_height_in
from analysis.figures.interactive import interactive_roofline
from analysis.figures.interactive_kernels import interactive_kernel_roofline
from analysis.figures.interactive_ops import interactive_op_roofline
from analysis.figures.kernel_roofline import draw_kernel_roofline
from analysis.figures.op_roofline import draw_op_roofline
from analysis.figures.plotly_page import figure_html
from analysis.figures.roofline import draw_roofline
from analysis.figures.style import model_colours

__all__ = [
    "draw_forest",
    "draw_kernel_roofline",
    "draw_op_roofline",
    "draw_roofline",
    "figure_html",
    "forest_height_in",
    "interactive_kernel_roofline",
    "interactive_op_roofline",
    "interactive_roofline",
    "model_colours",
    "save_figure",
    "single_axes",
]
