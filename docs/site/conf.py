# SPDX-License-Identifier: MIT
"""Sphinx: one site of the guides and references that docs/site/pages.py has put together; ci/docs runs both."""

project = "gradscaler"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = "gradscaler"
html_static_path = []
html_copy_source = False
html_show_copyright = False
html_show_sphinx = False
html_css_files = ["site.css"]
html_static_path = ["static"]
templates_path = []
pygments_style = "default"
pygments_dark_style = "github-dark"
myst_heading_anchors = 3
toc_object_entries_show_parents = "hide"
python_use_unqualified_type_names = True
add_module_names = False
maximum_signature_line_length = 88
smartquotes = False  # texts of the code have code's quotes
