"""A recorded day as one HTML page, and a chart of its message rate.

In: figures computed by `blackbox.analysis.measure_day` (`day_report`), or a recording. Out: self-contained HTML, SVG,
PNG. `charts` draws for the page, `picture` makes standalone SVG files.
"""
