"""llama.cpp's server as Debian has it, with a model of random weights: real tokens, in the server's own count."""

from __future__ import annotations

import os
import random
import re
import signal
import struct
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from tests.bpf.serving_node import Server
from tests.packages import root_with
from tests.support import free_port, until

WIDTH, FORWARD, HEADS = 64, 128, 2
WORDS = [b"\xe2\x96\x81" + it for it in b" the quick brown fox jumps over a lazy dog".split(b" ")]
TOKENS = [b"<unk>", b"<s>", b"</s>", *(b"<0x%02X>" % byte for byte in range(256)), *WORDS]
KINDS = [2, 3, 3, *[6] * 256, *[1] * len(WORDS)]
"""LLAMA_TOKEN_TYPE of llama.h: unknown, control, byte, normal."""
_UINT32, _FLOAT32, _STRING, _ARRAY, _INT32 = 4, 6, 8, 9, 5


@contextmanager
def llama_server() -> Iterator[Server]:
    """A server of four slots that has metrics. Skips where Debian's package cannot be had."""
    root, port = root_with("llama.cpp-tools", "sid"), free_port()
    (root / "tiny.gguf").write_bytes(model())
    # One computing thread: while two spin, all else on two processors of Linux 6.18 stood still for 5 to 10 s at times.
    arguments = ["--model=/tiny.gguf", f"--port={port}", "--parallel=4", "--threads=1", "--ctx-size=65536"]
    flags = [word for it in [*arguments, "--metrics", "--offline"] for word in it.split("=")]
    process = subprocess.Popen(
        ["chroot", root, "/usr/bin/llama-server", *flags],
        start_new_session=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    server = Server(process, ("127.0.0.1", port))
    try:
        until(lambda: _healthy(process, port), "llama-server has its model")
        yield server
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(30)


def counted(server: Server) -> dict[str, int]:
    """Return the tokens of prompts and of answers that the server has counted."""
    with urllib.request.urlopen(f"http://127.0.0.1:{server.address[1]}/metrics", timeout=30) as answer:
        page = answer.read().decode()
    found = {name: int(value) for name, value in re.findall(r"^llamacpp:(\w+) (\d+)$", page, re.MULTILINE)}
    return {
        "input": found["prompt_tokens_total"] + found["prompt_tokens_cached_total"],
        "output": found["tokens_predicted_total"],
    }


def _healthy(process: subprocess.Popen[bytes], port: int) -> bool:
    assert process.poll() is None
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=30) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


def model() -> bytes:
    """Return a GGUF file, version 3 (docs/gguf.md of ggml): one layer of the llama architecture."""
    fields = {
        "general.architecture": _text(b"llama"),
        **{
            f"llama.{name}": (_UINT32, struct.pack("<I", value))
            for name, value in {
                "context_length": 16_384,
                "embedding_length": WIDTH,
                "block_count": 1,
                "feed_forward_length": FORWARD,
                "attention.head_count": HEADS,
                "rope.dimension_count": WIDTH // HEADS,
            }.items()
        },
        "llama.attention.layer_norm_rms_epsilon": (_FLOAT32, struct.pack("<f", 1e-5)),
        "tokenizer.ggml.model": _text(b"llama"),
        "tokenizer.ggml.tokens": _array(_STRING, [_text(it)[1] for it in TOKENS]),
        "tokenizer.ggml.scores": _array(_FLOAT32, [struct.pack("<f", -number) for number in range(len(TOKENS))]),
        "tokenizer.ggml.token_type": _array(_INT32, [struct.pack("<i", it) for it in KINDS]),
    }
    square = {f"blk.0.attn_{it}.weight": (WIDTH, WIDTH) for it in ("q", "k", "v", "output")}
    tensors = {
        **{name: (WIDTH, len(TOKENS)) for name in ("token_embd.weight", "output.weight")},
        **square,
        **{f"blk.0.ffn_{it}.weight": (WIDTH, FORWARD) for it in ("gate", "up")},
        "blk.0.ffn_down.weight": (FORWARD, WIDTH),
        **{name: (WIDTH,) for name in ("output_norm.weight", "blk.0.attn_norm.weight", "blk.0.ffn_norm.weight")},
    }
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(fields))
    head += b"".join(_name(name) + struct.pack("<I", kind) + value for name, (kind, value) in fields.items())
    data = b""
    for name, shape in tensors.items():
        head += _name(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, len(data))
        data += _weights(shape)
    return head + bytes(-len(head) % 32) + data


def _weights(shape: tuple[int, ...]) -> bytes:
    """Of 32 bits, a multiple of 32 bytes; of one dimension 1."""
    count = shape[0] * (shape[1] if len(shape) > 1 else 1)
    source = random.Random(count)
    return struct.pack(f"<{count}f", *(source.gauss(0, 0.1) if len(shape) > 1 else 1.0 for _ in range(count)))


def _name(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def _text(text: bytes) -> tuple[int, bytes]:
    return _STRING, struct.pack("<Q", len(text)) + text


def _array(kind: int, values: list[bytes]) -> tuple[int, bytes]:
    return _ARRAY, struct.pack("<IQ", kind, len(values)) + b"".join(values)
