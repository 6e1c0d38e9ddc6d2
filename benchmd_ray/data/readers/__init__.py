"""Readers: a file to an array with its unit, nothing else.

What cannot be read raises `RecordError`, whose message quotes nothing that may name a patient.
Sizes that a file claims are checked before memory is set aside. `VERSION` of a module is raised
whenever what it reads of the same file changes.
"""
