"""The report: one HTML file that tells what was found, to people who never read the paper.

Reading order: `context` (what is told, and what the sections share), `prediction` (what is predicted and advised), `ties`
(how weights and influence are spoken of), `text` and `elements` (words, HTML and SVG), the sections in the order of the
page (`headline`, `kin`, `agents`, `choices`, `run`), `page` (the frame, the numbers it draws from, and the file).
"""

from kinfed.report.context import MANY_AGENTS, ReportData
from kinfed.report.page import write_report

__all__ = ["MANY_AGENTS", "ReportData", "write_report"]
