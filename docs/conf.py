"""Sphinx's settings for the site that `make docs` builds, every warning an error."""

import logging

import unisono

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
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0060a0", "color-brand-content": "#0060a0"},
    "dark_css_variables": {"color-brand-primary": "#6fb7ec", "color-brand-content": "#6fb7ec"},
}
pygments_style = "friendly"
pygments_dark_style = "monokai"


def _list_commands(_app, docname, source):
    """Put every verb's own help into the page of the command line."""
    if docname != "commands":
        return
    import click

    from unisono.cli.main import unisono as group

    def told(command, path, context):
        own = click.Context(command, parent=context, info_name=path[-1], terminal_width=100)
        yield f"\n{'#' * len(path)} {' '.join(path)}\n\n```text\n{command.get_help(own)}\n```\n"
        for name in command.list_commands(own) if isinstance(command, click.Group) else ():
            yield from told(command.get_command(own, name), (*path, name), own)

    top = click.Context(group, info_name="unisono")
    verbs = (told(group.get_command(top, name), ("unisono", name), top) for name in group.list_commands(top))
    source[0] += "".join(text for verb in verbs for text in verb)


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", _list_commands)
