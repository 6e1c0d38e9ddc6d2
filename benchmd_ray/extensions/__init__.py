"""Plug-ins, optional packages, and the versions of the parts that compute results."""
