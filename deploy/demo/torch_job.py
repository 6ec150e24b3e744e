"""A training loop of PyTorch, until it is ended: python torch_job.py STATUS, with the file for what PyTorch counts."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import torch

LAYERS, WIDTH = 12, 1 << 18
TOO_MUCH = 100 << 30
STEP_SECONDS, REPORT_SECONDS, TOO_MUCH_SECONDS = 0.02, 1, 5


class Scale(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x * self.weight).relu()


def write(path: Path, steps_per_second: float, out_of_memory: int) -> None:
    new = path.with_suffix(".new")
    counted = {"memory_reserved": torch.cuda.memory_reserved(), "out_of_memory": out_of_memory}
    new.write_text(json.dumps({"steps_per_second": steps_per_second, **counted}))
    new.rename(path)


def main(status: str) -> None:
    model = torch.nn.Sequential(*(Scale() for _ in range(LAYERS))).cuda()
    optimiser = torch.optim.Adam(model.parameters())
    batch = torch.ones(WIDTH).pin_memory()
    steps, since, tried, out_of_memory = 0, time.monotonic(), time.monotonic(), 0
    while True:
        loss = model(batch.to("cuda", non_blocking=True)).square().mean()
        loss.backward()
        optimiser.step()
        optimiser.zero_grad()
        loss.item()
        steps, now = steps + 1, time.monotonic()
        if now - since >= REPORT_SECONDS:
            write(Path(status), steps / (now - since), out_of_memory)
            steps, since = 0, now
        if now - tried >= TOO_MUCH_SECONDS:
            tried = now
            try:
                torch.empty(TOO_MUCH, dtype=torch.uint8, device="cuda")
            except torch.cuda.OutOfMemoryError:  # after two calls: PyTorch frees its cache and tries again
                out_of_memory += 1
        time.sleep(STEP_SECONDS)


if __name__ == "__main__":
    main(sys.argv[1])
