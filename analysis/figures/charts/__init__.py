"""Charts of runs: over batch size, in rows, in the order of iterations.

A chart is data first, which `draw_chart` draws on paper and `interactive_chart` on a page.
"""
