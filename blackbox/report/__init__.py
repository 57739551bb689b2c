"""A recorded day as one HTML page, and as a picture of its rate.

In: figures that `blackbox.analysis.measure_day` computes (`day_report`), or a recording. Out: HTML that needs no other
file, SVG, PNG. `charts` draws for the page, `picture` for SVG files that stand alone.
"""
