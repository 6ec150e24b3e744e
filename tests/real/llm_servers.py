"""LLM servers with a model of random weights: vLLM's on this machine's processors, and SGLang's on the soft GPU."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.bpf.serving_node import Server
from tests.real import releases
from tests.real.job import environment_of, runtime
from tests.real.releases import SGLANG, VLLM, Release
from tests.softgpu.process import inherited
from tests.support import free_port, until

MODEL, LONGEST = "tiny-llama", 1 << 16
"""Name of the model, and tokens of its longest context."""
START_SECONDS = 600.0
"""Longest start: vLLM imports several thousand modules and compiles one in C++, SGLang several kernels."""
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "hidden_act": "silu",
    "vocab_size": 258,
    "bos_token_id": 256,
    "eos_token_id": 257,
    "max_position_embeddings": LONGEST,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}
TOKENIZER = """
import sys
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
bytes_and_ends = {character: n for n, character in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
tokenizer = Tokenizer(models.BPE(vocab={**bytes_and_ends, "<s>": 256, "</s>": 257}, merges=[]))
tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
tokenizer.decoder = decoders.ByteLevel()
tokenizer.add_special_tokens(["<s>", "</s>"])
tokenizer.save(sys.argv[1])
"""
"""A token for each byte."""
TEMPLATE = "{% for message in messages %}{{ message['content'] }}{% endfor %}"


@dataclass(frozen=True, slots=True)
class Engine:
    """A release's server: how it is started, and what its own counters begin with."""

    command: tuple[str, ...]
    prefix: str
    environment: Callable[[Release, Path], Mapping[str, str]]


def _processors(release: Release, folder: Path) -> Mapping[str, str]:
    return {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CPU_KVCACHE_SPACE": "1",
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "OMP_NUM_THREADS": "1",
    }


def _soft_gpu(release: Release, folder: Path) -> Mapping[str, str]:
    """SGLang compiles kernels in C++ for its GPU, by nvcc: found, with CUDA's headers, in wheels, and kept compiled."""
    assert release.base
    counts, compiled = folder / "counts", releases.CACHE / release.name / "compiled"
    counts.mkdir()
    return {
        **environment_of(release, counts),
        "CUDA_HOME": str(releases.packages(release) / "nvidia" / "cu13"),
        "CPATH": str(releases.packages(release.base) / "nvidia" / "cu13" / "include"),
        "LIBRARY_PATH": str(runtime(release.cuda).parent),
        "SGLANG_CACHE_DIR": str(compiled),
        "SGLANG_JIT_CACHE_DIR": str(compiled / "jit"),
    }


_VLLM = ("vllm.entrypoints.openai.api_server", "--enforce-eager", "--max-num-seqs=32")
_SGLANG = (
    *("sglang.launch_server", "--attention-backend=triton", "--sampling-backend=pytorch"),
    *("--cuda-graph-max-bs-decode=4", "--enable-metrics"),
)
ENGINES = {
    VLLM.name: Engine(_VLLM, "vllm:", _processors),
    SGLANG.name: Engine(_SGLANG, "sglang:", _soft_gpu),
}
"""By the name of the release."""


@contextmanager
def llm_server(release: Release, folder: Path) -> Iterator[Server]:
    """A server that is ready; its files and its log are in `folder`, and what the soft GPU counts is in `counts`."""
    python, port, engine = releases.python(release), free_port(), ENGINES[release.name]
    write_model(python, folder / "model")
    words = [python, "-m", *engine.command, f"--model={folder / 'model'}", f"--port={port}"]
    choices = [f"--served-model-name={MODEL}", "--load-format=dummy", "--dtype=bfloat16"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*words, *choices],
            env=inherited() | {"HF_HUB_OFFLINE": "1"} | engine.environment(release, folder),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    server = Server(process, ("127.0.0.1", port))
    try:
        until(lambda: _healthy(server, folder / "log"), lambda: (folder / "log").read_text()[-2000:], START_SECONDS)
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def write_model(python: Path, folder: Path) -> None:
    """Write what a model has but for its weights."""
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    ends = {"bos_token": "<s>", "eos_token": "</s>", "chat_template": TEMPLATE}
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": LONGEST, **ends})
    )
    subprocess.run([python, "-c", TOKENIZER, folder / "tokenizer.json"], check=True)


def counted(release: Release, server: Server) -> dict[str, float]:
    """Return a server's own counters, by name without prefix, over their labels."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.address[1]}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    found: dict[str, float] = {}
    for name, value in re.findall(rf"^{ENGINES[release.name].prefix}(\w+)\{{[^}}]*\}} (\S+)$", page, re.MULTILINE):
        found[name] = found.get(name, 0) + float(value)
    return found


def _healthy(server: Server, log: Path) -> bool:
    assert server.process.poll() is None, log.read_text()[-4000:]
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{server.address[1]}/health", timeout=30) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False
