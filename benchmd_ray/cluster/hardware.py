"""Description of hardware: model of CPU or GPU, instruction sets, threads.

The same run rounds differently on hardware that differs in any of these. The description does not
identify a machine or a person: no host or user name, no address, no serial number.
"""

from __future__ import annotations

import json
import os
import platform
import re
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

CPU_INFO = Path("/proc/cpuinfo")
LIMITS = ("ONEDNN_MAX_CPU_ISA", "DNNL_MAX_CPU_ISA", "MKL_ENABLE_INSTRUCTIONS", "MKL_CBWR")
"""Variables that limit the instructions of oneDNN and MKL, neither of which reports its choice."""


@dataclass(frozen=True)
class Hardware:
    """Two are equal if a run with equally many workers gives identical digits on both."""

    model: str
    """CPU model with family and model number, or GPU model."""
    instructions: str
    """Instruction sets of PyTorch and NumPy; for a GPU its compute capability, CUDA and cuDNN."""
    threads: str
    """PyTorch's threads, and OpenMP's if they differ; empty for a GPU."""

    def __str__(self) -> str:
        plural = "" if self.threads == "1" else "s"
        threads = f"{self.threads} thread{plural}" if self.threads else ""
        return ", ".join(filter(None, (self.model, self.instructions, threads)))

    def to_json(self) -> str:
        """The text that `from_json` reads."""
        return json.dumps(asdict(self), ensure_ascii=False)


def from_json(text: str) -> Hardware:
    """Read `Hardware.to_json`; `ValueError` for any other text."""
    return from_fields(json.loads(text))


def from_fields(content: Any) -> Hardware:
    """A `Hardware` from its fields; `ValueError` for anything else."""
    names = [field.name for field in fields(Hardware)]
    if not isinstance(content, dict) or not all(isinstance(content.get(n), str) for n in names):
        raise ValueError(f"not a description of hardware: {str(content)[:80]}")
    return Hardware(*(content[name] for name in names))


def hardware(device: torch.device) -> Hardware:
    if device.type == "cuda":
        return _gpu(device)
    return Hardware(_cpu_model(), ", ".join(_cpu_instructions()), _threads())


def _gpu(device: torch.device) -> Hardware:
    import torch

    major, minor = torch.cuda.get_device_capability(device)
    libraries = f"CUDA {torch.version.cuda}, cuDNN {torch.backends.cudnn.version()}"  # type: ignore[no-untyped-call]
    instructions = f"compute capability {major}.{minor}, {libraries}"
    return Hardware(torch.cuda.get_device_name(device), instructions, "")


def _cpu_model() -> str:
    """Model with family and number, since virtual machines often report only ``AMD EPYC``."""
    text = CPU_INFO.read_text("utf-8", "replace") if CPU_INFO.is_file() else ""
    pairs = (line.partition(":") for line in text.partition("\n\n")[0].splitlines())
    fields = {name.strip(): " ".join(value.split()) for name, _, value in pairs}
    name = fields.get("model name") or platform.processor() or platform.machine()
    if "cpu family" in fields and "model" in fields:
        return f"{name} (family {fields['cpu family']}, model {fields['model']})"
    return name


def _cpu_instructions() -> list[str]:
    import numpy as np
    import torch

    config: Any = np.show_config(mode="dicts")
    extensions = config.get("SIMD Extensions", {})  # without empty values
    simd = extensions.get("found") or extensions.get("baseline") or ["no extensions"]
    chosen = [f"PyTorch {torch.backends.cpu.get_cpu_capability()}", f"NumPy {simd[-1]}"]
    limits = ((name, os.environ.get(name, "")) for name in LIMITS)
    return chosen + [f"{k}={v}" for k, v in limits if re.fullmatch(r"[A-Za-z0-9_,]{1,40}", v)]


def _threads() -> str:
    import torch

    threads = str(torch.get_num_threads())
    openmp = re.search(r"omp_get_max_threads\(\) : (\d+)", torch.__config__.parallel_info())
    return threads if openmp is None or openmp[1] == threads else f"{threads} (OpenMP {openmp[1]})"
