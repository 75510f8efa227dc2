"""Which kind of difference there is between agents: in their inputs, their answers, or the answers to equal inputs.

Random features of x, and of y, are compared between agents by dealing rows at random; y given x by what a common model
leaves unexplained, exchanged only between rows that are near each other. docs/diagnosis.md tells how often they are wrong.
"""

from kinfed.diagnosis.questions import shift_tests
from kinfed.diagnosis.records import Diagnosis, ShiftTest

__all__ = ["Diagnosis", "ShiftTest", "shift_tests"]
