"""Figures that an example shows by naming them last, as in a notebook, become pictures of its page."""

from matplotlib.figure import Figure
from sphinx_gallery.scrapers import figure_rst


def scrape(block, block_vars, gallery_conf):
    """Save the figure that the last line of a block is, and return the text that shows it."""
    names = block_vars["example_globals"]
    shown = names.get("___")  # where sphinx-gallery keeps the value of the last line
    if not isinstance(shown, Figure):
        return ""
    names["___"] = None  # so that a later block without a value does not show it again
    path = next(block_vars["image_path_iterator"])
    shown.savefig(path, dpi=150)
    return figure_rst([path], gallery_conf["src_dir"], block_vars.get("alt", ""))
