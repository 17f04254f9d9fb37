"""A report of measurements: Markdown, one self-contained HTML file, figures and tables."""
