"""Catalogs described and drawn."""
