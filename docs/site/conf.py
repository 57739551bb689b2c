"""Settings of Sphinx for the site. `tests/write_site.py` writes the pages and calls it."""

from pygments.lexers.special import TextLexer
from sphinx.highlighting import lexers

from blackbox import __version__

project = "blackbox"
version = release = __version__
extensions = ["myst_parser"]
root_doc = "index"
highlight_language = "none"
smartquotes = False  # commands within sentences are copied as they are
lexers["hex"] = TextLexer()

# Markdown as on GitHub, and definition lists for generated pages.
myst_enable_extensions = ["deflist"]
myst_heading_anchors = 4
myst_url_schemes = {"http": None, "https": None, "mailto": None, "raw": "{{path}}"}  # raw: a file of the site, no page
myst_disable_syntax = ["myst_line_comment", "myst_block_break", "myst_target"]

html_theme = "furo"
html_title = "blackbox"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_use_index = False
html_show_sphinx = False
html_show_copyright = False
# A page from a file cannot fetch others for the texts of search results.
_TITLES_ONLY = "if (location.protocol === 'file:') DOCUMENTATION_OPTIONS.SHOW_SEARCH_SUMMARY = false;"
html_js_files = [(None, {"body": _TITLES_ONLY})]
