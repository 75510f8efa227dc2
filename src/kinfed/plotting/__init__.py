"""Figures of every result, reached as ``result.plot``: one small accessor per kind of result, and one look for all."""
