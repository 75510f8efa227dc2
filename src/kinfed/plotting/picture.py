"""A figure that shows itself in a notebook, without pyplot and its list of open figures.

Imported only when a figure is made: this module needs matplotlib.
"""

from __future__ import annotations

import base64
import io

from matplotlib.figure import Figure

from kinfed.markup import escape

_DOTS_PER_INCH = 110


class Picture(Figure):
    """A matplotlib figure with a picture of itself for notebooks and pages."""

    def _repr_png_(self) -> bytes:
        file = io.BytesIO()
        self.savefig(file, format="png", dpi=_DOTS_PER_INCH)
        return file.getvalue()

    def _repr_html_(self) -> str:
        titles = (axes.get_title("left") or axes.get_title() for axes in self.axes)
        seen = escape("; ".join(title.replace("\n", " ") for title in titles if title))
        drawn = base64.b64encode(self._repr_png_()).decode()
        return f'<img src="data:image/png;base64,{drawn}" alt="{seen}" style="max-width:100%">'
