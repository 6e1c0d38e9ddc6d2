"""Boards: bundles of predictions, scores recomputed from them, and a site of static pages."""
