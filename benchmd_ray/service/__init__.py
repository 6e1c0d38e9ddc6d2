"""Runs as users ask for them: opened in a store, launched, evaluated."""
