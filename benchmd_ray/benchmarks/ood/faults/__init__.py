"""Faults made from stored signals, deterministic in record, fault, severity and seed."""

from __future__ import annotations

import hashlib

import numpy as np

from benchmd_ray.benchmarks.ood.faults import images, traces, volumes
from benchmd_ray.benchmarks.ood.faults.fault import SEVERITIES, Fault, Recorded, Values, controls
from benchmd_ray.errors import BenchmdError
from benchmd_ray.modality.signals import Signal

__all__ = ["SEVERITIES", "Fault", "Recorded", "faults_of", "made"]
_KINDS = {2: traces.faults_of, 3: images.faults_of, 4: volumes.faults_of}


def faults_of(signal: Signal) -> dict[str, Fault]:
    """Faults that a signal can have, by name."""
    faults = (*_KINDS[len(signal.axes)](signal), *controls(signal))
    return {fault.name: fault for fault in faults}


def made(record: Recorded, fault: Fault, severity: int, record_id: str, seed: int) -> Values:
    """A record with a fault, in stored steps.

    What is drawn follows from the record's id, fault, severity and seed.
    """
    if severity not in fault.severities:
        valid = ", ".join(map(str, fault.severities))
        raise BenchmdError(
            f"the fault {fault.name} has no severity {severity}, expected one of {valid}."
        )
    key = f"{record_id}/{fault.name}/{severity}/{seed}".encode()
    draw = np.random.default_rng(list(hashlib.blake2b(key, digest_size=16).digest()))
    return np.ascontiguousarray(fault.make(record, severity, draw), np.float32)
