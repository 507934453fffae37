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


def reference():
    """Return every verb's own help with every option, and each option's name in run files and in Python."""
    import click

    from unisono.cli.main import unisono as group
    from unisono.cli.options.fields import help_all
    from unisono.launchers.spec import LaunchSpec
    from unisono.nodes.plan import NodesOptions
    from unisono.recipes.catalog import Options
    from unisono.strategies.catalog import CATALOG

    def told(command, path, context):
        own = click.Context(command, parent=context, info_name=path[-1], terminal_width=100)
        yield f"\n{'#' * len(path)} {' '.join(path)}\n\n```text\n{help_all(own)}\n```\n"
        for name in command.list_commands(own) if isinstance(command, click.Group) else ():
            yield from told(command.get_command(own, name), (*path, name), own)

    top = click.Context(group, info_name="unisono")
    for name in group.list_commands(top):
        yield from told(group.get_command(top, name), ("unisono", name), top)
    yield "\n## Names of options\n\nAn option is declared once; these are its names.\n"
    yield from name_table("Recipes", "`Options`", Options)
    yield from name_table("Launches", "`LaunchSpec`", LaunchSpec)
    yield from name_table("Several hosts", "`NodesOptions`", NodesOptions)
    for name, kind in CATALOG.items():
        yield from name_table(f"Strategy {name}", f'`unisono.strategy("{name}", ...)`', kind)


def name_table(title, python, kind):
    """Return a dataclass's options as a table: flag, key of run files, keyword, what it takes."""
    from unisono.options.fields import options_of

    yield f"\n### {title}\n\n| command line | run file | keyword of {python} | takes |\n|---|---|---|---|\n"
    for item in options_of(kind).values():
        takes = item.of.words if item.of else ", ".join(item.choices) or item.words
        yield f"| `{item.flag}` | `{item.key}` | `{item.name}` | {'a list: ' * item.is_list}{takes} |\n"


def _list_commands(_app, docname, source):
    """Put the reference into the page of the command line."""
    if docname == "commands":
        source[0] += "".join(reference())


def setup(app):
    """Called by Sphinx."""
    app.connect("source-read", _list_commands)
