"""The report: one HTML file that tells what was found, to people who never read the paper.

Reading order: `story` (what is told), `findings` (what the sections share), `text`, `elements` and `shapes` (words, HTML
and SVG), `sections` (one file each, in the order of the page), `page` (the frame, and the file).
"""

from kinfed.report.page import write_report
from kinfed.report.story import Story

__all__ = ["Story", "write_report"]
