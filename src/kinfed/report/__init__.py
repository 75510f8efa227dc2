"""The report: one HTML file that tells what was found, to people who never read the paper.

Reading order: `context` (what is told, predicted and advised, and what the sections share), `text` and `elements` (words,
HTML and SVG), the sections in the order of the page (`headline`, `kin`, `agents`, `run`),
`page` (the frame, the numbers it draws from, and the file).
"""

from kinfed.report.context import MANY_AGENTS, ReportData
from kinfed.report.page import write_report

__all__ = ["MANY_AGENTS", "ReportData", "write_report"]
