"""Results of many runs: analysed, as tables, figures and a page."""
