"""Studies: each answers a question once, most of them for a page of the documentation."""
