"""Analysis of runs as tables, figures and a page; pictures of catalogs."""
