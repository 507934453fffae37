"""Sphinx's settings for the site that `make docs` builds, every warning an error."""

import json
import logging
import sys
from pathlib import Path

import unisono

sys.path.insert(0, str(Path(__file__).parent))
import generated  # beside this file, as the next
import search_index

# A pattern of launch pages may match nothing (Sphinx has no name for it); a page in no toctree is still an error.
logging.getLogger("sphinx.sphinx.directives.other").addFilter(lambda record: "glob pattern" not in record.getMessage())

project = "unisono"
author = "the unisono authors"
project_copyright = "2026, the unisono authors"
version = release = unisono.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_heading_anchors = 3  # links may name a heading: observe.md#inside-a-step
myst_enable_extensions = ["colon_fence", "deflist"]

default_role = "code"  # in docstrings, `name` is code
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
python_maximum_signature_line_length = 88
napoleon_use_ivar = True  # attributes of data classes are fields, told once
napoleon_custom_sections = [("Source", "notes_style")]
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = f"unisono {version}"
html_static_path = ["_static"]
templates_path = ["_templates"]  # the page of the search
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0060a0", "color-brand-content": "#0060a0"},
    "dark_css_variables": {"color-brand-primary": "#6fb7ec", "color-brand-content": "#6fb7ec"},
}
pygments_style = "friendly"
pygments_dark_style = "monokai"


def _add(_app, docname, source):
    """Add what is made of the code: each verb's help, the names of options, a line for each public name."""
    source[0] += generated.added(docname)


def _write_search(app, failed):
    """Write the index of the search, and see that what it points at is there."""
    if failed or app.builder.format != "html":
        return
    index = search_index.make(generated.texts())
    for name, _, anchor, *_ in index["sections"]:
        if anchor and f'id="{anchor}"' not in (app.outdir / f"{name}.html").read_text():
            logging.getLogger("sphinx.search").warning(
                "the search points at %s.html#%s, which is not there", name, anchor
            )
    text = json.dumps(index, ensure_ascii=False, separators=(",", ":"))
    (app.outdir / "_static" / "search_index.js").write_text(f"window.unisonoIndex = {text};\n")


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", _add)
    app.connect("build-finished", _write_search)
