"""The trial of a node: whether libraries get return probes."""

from __future__ import annotations

from exporter.bpf.safety import Survival
from exporter.bpf.trial import Trial


def test_return_probes_are_switched_off() -> None:
    """Without --bpf.return-probes no library gets any, also where all processes would survive them."""
    trial, survival = Trial(returns=False), Survival(seccomp=True, shadow_stack=True)
    vars(trial)["survival"] = survival
    assert (False, "they are switched off (--no-bpf.return-probes)") == trial.returns_allowed([])
    trial = Trial()
    vars(trial)["survival"] = survival
    assert trial.returns_allowed([])[0]
