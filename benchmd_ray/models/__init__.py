"""Encoders, segmentation networks and heads."""
