"""Pictures of results: each is a `Chart`, plain data, which two renderers draw.

`draw_chart` draws one on paper and `interactive_chart` for a page. `draw_roofline` takes an Axes
and neither opens nor saves anything.
"""

from analysis.figures.chart import Chart, model_colours
from analysis.figures.interactive import figure_html, interactive_chart
from analysis.figures.roofline import draw_roofline, plot_roofline, run_chart
from analysis.figures.roofline_of_steps import kernel_chart, op_chart
from analysis.figures.static import draw_chart, save_figure, single_axes
