"""How the documentation site is built; `make docs` needs no network, and the site loads nothing from elsewhere."""

import sys
from importlib.metadata import version as installed_version
from importlib.util import find_spec
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_extensions"))

project = "kinfed"
author = "The kinfed developers"
copyright = "the kinfed developers, BSD-3-Clause"
release = installed_version("kinfed")
version = release

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "numpydoc",
    "sphinx.ext.mathjax",
    "sphinx-mathjax-offline",
    "docstrings",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "matplotlib.sphinxext.plot_directive",
]

root_doc = "index"
exclude_patterns = ["figures", "_extensions", "_templates", "gallery/*.ipynb", "gallery/*.py", "gallery/*.md5"]
default_role = "py:obj"
language = "en"
show_warning_types = True
# A gallery's own index has no page title of its own below it, and cached configuration is not needed.
suppress_warnings = ["config.cache"]

myst_enable_extensions = ["dollarmath", "amsmath", "colon_fence", "deflist", "attrs_inline", "attrs_block"]
myst_heading_anchors = 3
myst_dmath_double_inline = True

# Docstrings
autosummary_generate = True
autosummary_ignore_module_all = False
autodoc_member_order = "bysource"
autodoc_typehints = "none"  # numpydoc sections name the types
autodoc_preserve_defaults = True
numpydoc_show_class_members = False  # autodoc shows them

# Examples run in the build, and their figures are its figures.
sphinx_gallery_conf = {
    "examples_dirs": "../examples",
    "gallery_dirs": "gallery",
    "filename_pattern": r"/plot_",
    "within_subsection_order": "FileNameSortKey",
    "image_scrapers": ("matplotlib", "shown_figures.scrape"),
    "ignore_repr_types": r"matplotlib|Picture",
    "abort_on_example_error": True,
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "write_computation_times": False,
    "remove_config_comments": True,
    "doc_module": ("kinfed",),
    "backreferences_dir": None,
    "inspect_global_variables": False,
}
plot_include_source = False
plot_html_show_source_link = False
plot_html_show_formats = False
plot_formats = [("svg", 100)]
plot_pre_code = ""

copybutton_exclude = ".linenos, .gp, .go"
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# The page
html_theme = "furo"
html_title = "kinfed"
html_static_path = ["_static"]
html_css_files = ["kinfed.css"]
html_favicon = "_static/logo.svg"
html_show_sphinx = False
html_show_copyright = True
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "light_logo": "logo.svg",
    "dark_logo": "logo-dark.svg",
    "light_css_variables": {"color-brand-primary": "#1f5f8b", "color-brand-content": "#1f5f8b"},
    "dark_css_variables": {"color-brand-primary": "#8cc4ea", "color-brand-content": "#8cc4ea"},
    "top_of_page_buttons": [],
}
templates_path = ["_templates"]

autodoc_mock_imports = [name for name in ("torch",) if find_spec(name) is None]
