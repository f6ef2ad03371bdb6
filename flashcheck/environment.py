"""The environment of a run: versions, processor, GPU, and the flags that change bits.

Every report and example carries it. It holds no host name, user name or path.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import os
import platform
import struct
import subprocess
import sys
from typing import Any

_PACKAGES = ("flashcheck", "numpy", "torch", "triton", "hypothesis", "mpmath", "gmpy2", "ml_dtypes")

# Variables that change what a kernel computes; none of them holds a path.
_VARIABLES = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS_WORKSPACE_CONFIG",
    "MKL_CBWR",
    "MKL_NUM_THREADS",
    "NVIDIA_TF32_OVERRIDE",
    "OMP_NUM_THREADS",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "TRITON_F32_DEFAULT",
    "TRITON_INTERPRET",
)

# Key in the report -> attribute below torch. A torch without it leaves the key out.
_FLAGS = {
    "fp32_precision": "backends.fp32_precision",
    "cuda_allow_tf32": "backends.cuda.matmul.allow_tf32",
    "cuda_fp32_precision": "backends.cuda.matmul.fp32_precision",
    "cudnn_allow_tf32": "backends.cudnn.allow_tf32",
    "mkldnn_fp32_precision": "backends.mkldnn.matmul.fp32_precision",
    "fp16_reduced_precision_reduction": (
        "backends.cuda.matmul.allow_fp16_reduced_precision_reduction"
    ),
    "bf16_reduced_precision_reduction": (
        "backends.cuda.matmul.allow_bf16_reduced_precision_reduction"
    ),
    "fp16_accumulation": "backends.cuda.matmul.allow_fp16_accumulation",
}


def collect(device: str | None = None) -> dict[str, Any]:
    """Everything about this process and machine that can change a result, as JSON data.

    `device` is "cpu" or "cuda[:i]"; None means the GPU where there is one. Imports torch.
    """
    torch: Any = importlib.import_module("torch")
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    versions = {"python": platform.python_version()}
    versions |= {name: found for name in _PACKAGES if (found := _version(name))}
    libc = " ".join(platform.libc_ver()).strip()
    return {
        "versions": versions,
        "oracle": f"mpmath {versions['mpmath']}/{_mpmath_backend()}",
        "platform": ", ".join(filter(None, (f"{platform.system()} {platform.machine()}", libc))),
        "device": device,
        "cpu": {
            "model": _cpu_model(),
            "simd": _call(torch.backends.cpu, "get_cpu_capability"),
            "threads": torch.get_num_threads(),
        },
        "gpu": _gpu(torch, device) if device.startswith("cuda") else None,
        "numeric": numeric_flags(torch),
        "variables": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        "git": _git(),
    }


def lines(env: dict[str, Any]) -> list[str]:
    """Two or three short lines for a person; tolerant of keys that are not there."""
    versions = env.get("versions", {})
    first = [f"{n} {versions[n]}" for n in ("flashcheck", "torch", "triton", "python")
             if versions.get(n)]  # fmt: skip
    if env.get("oracle"):
        first.append(f"oracle {env['oracle']}")
    cpu, gpu, numeric = env.get("cpu") or {}, env.get("gpu") or {}, env.get("numeric") or {}
    second = []
    if gpu.get("name"):
        second.append(f"{env.get('device')} {gpu['name']}")
        second += [f"{label} {gpu[k]}" for k, label in (("cuda", "CUDA"), ("driver", "driver"))
                   if gpu.get(k)]  # fmt: skip
    elif cpu.get("model"):
        second.append(f"cpu {cpu['model']}")
        second += [str(cpu["simd"])] if cpu.get("simd") else []
    if cpu.get("threads"):
        second.append(f"{cpu['threads']} thread" + ("" if cpu["threads"] == 1 else "s"))
    third = []
    if numeric:
        third.append(f"TF32 {'on' if tf32(numeric) else 'off'}")
        third.append(f"matmul precision {numeric.get('float32_matmul_precision', 'unknown')}")
        third.append(f"FTZ {'on' if numeric.get('ftz') or numeric.get('daz') else 'off'}")
    if env.get("git"):
        third.append(f"commit {env['git']['commit']}" + ("+" if env["git"].get("dirty") else ""))
    third += [f"{name}={value}" for name, value in (env.get("variables") or {}).items()]
    return ["  ".join(line) for line in (first, second, third) if line]


def tf32(numeric: dict[str, Any]) -> bool:
    """Whether a float32 matmul of torch may run in TF32 (or less) in this process."""
    precisions = ("fp32_precision", "cuda_fp32_precision")
    return (
        bool(numeric.get("cuda_allow_tf32"))
        or numeric.get("float32_matmul_precision") in ("high", "medium")
        or any(numeric.get(name) in ("tf32", "bf16") for name in precisions)
    )


def numeric_flags(torch: Any) -> dict[str, Any]:
    """The switches of torch and of the processor that change the bits of a result."""
    found: dict[str, Any] = {}
    # Torch 2.9 and later raises when its old and new TF32 switches are mixed.
    found["float32_matmul_precision"] = _call(torch, "get_float32_matmul_precision")
    for key, path in _FLAGS.items():
        value = torch
        try:
            for part in path.split("."):
                value = getattr(value, part)
        except (AttributeError, RuntimeError):
            continue
        found[key] = value
    return found | {"ftz": flushes_results(), "daz": flushes_operands()}


def flushes_results() -> bool:
    """Whether this thread turns subnormal results into zero (FTZ), found by computing one."""
    smallest_normal, half = sys.float_info.min, float("0.5")
    # The bits are read, because under DAZ every comparison takes a subnormal for zero.
    return struct.pack("d", smallest_normal * half) == bytes(8)


def flushes_operands() -> bool:
    """Whether this thread reads subnormal operands as zero (DAZ)."""
    subnormal, scale = float("5e-324"), float("1e300")
    return subnormal * scale == 0.0


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _mpmath_backend() -> str:
    try:
        return str(importlib.import_module("mpmath.libmp").BACKEND)
    except (ImportError, AttributeError):
        return "unknown"


def _call(owner: Any, name: str) -> Any:
    try:
        return getattr(owner, name)()
    except (AttributeError, RuntimeError):
        return None


def _cpu_model() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            for line in file:
                if line.startswith("model name"):
                    return " ".join(line.split(":", 1)[1].split())
    except OSError:
        pass
    brand = (
        _output("sysctl", "-n", "machdep.cpu.brand_string") if sys.platform == "darwin" else None
    )
    return brand or platform.processor() or platform.machine()


def _gpu(torch: Any, device: str) -> dict[str, Any] | None:
    try:
        found = torch.cuda.get_device_properties(device)
    except (RuntimeError, AssertionError, ValueError):
        return None
    driver = _output("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader")
    return {
        "name": found.name,
        "capability": f"{found.major}.{found.minor}",
        "processors": found.multi_processor_count,
        "memory_gib": round(found.total_memory / 2**30, 1),
        "cuda": torch.version.cuda or getattr(torch.version, "hip", None),
        "driver": driver.splitlines()[0].strip() if driver else None,
    }


def _git() -> dict[str, Any] | None:
    commit = _output("git", "rev-parse", "--short", "HEAD")
    if not commit:
        return None
    return {"commit": commit, "dirty": bool(_output("git", "status", "--porcelain", "-uno"))}


def _output(*command: str) -> str | None:
    """What a command prints, or None where it is absent, fails or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip() or None
