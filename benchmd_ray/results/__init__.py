"""Run folders, tables and the published numbers."""
