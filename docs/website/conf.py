"""Settings of Sphinx. MyST reads the same Markdown as GitHub (CommonMark with tables)."""

from importlib.metadata import version as version_of

project = "virt-overhead"
author = "the authors of virt-overhead"
release = version_of("virt-overhead")
extensions = ["myst_parser"]
# The anchors that links to headings name, as GitHub makes them.
myst_heading_anchors = 5
# A block without a language is a command or an output. Excerpts with "..." are not valid JSON or TOML.
highlight_language = "none"
suppress_warnings = ["misc.highlighting_failure"]
html_theme = "furo"
html_title = "virt-overhead"
html_copy_source = False
html_show_sphinx = False
