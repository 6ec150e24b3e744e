"""Backends that run for a test: started in a folder, on ports that nothing listens on, ended with the context."""

from __future__ import annotations

import json
import os
import subprocess
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import yaml

from tests.backends import fetch
from tests.e2e.backend import Prometheus, end, get
from tests.support import free_port, until

START_SECONDS = 240.0
_QUIET = {"DO_NOT_TRACK": "1", "MLFLOW_DISABLE_TELEMETRY": "true", "PHOENIX_TELEMETRY_ENABLED": "false"}
_SPANS_OF_MLFLOW = """
import json, sys
from mlflow import MlflowClient
client, token, found = MlflowClient(sys.argv[1]), None, []
while True:
    page = client.search_traces(experiment_ids=["0"], max_results=100, page_token=token)
    found += [[span.to_dict(), trace.info.to_dict()] for trace in page for span in trace.data.spans]
    token = page.token
    if not token:
        break
print(json.dumps(found, default=str))
"""


class Prometheus3(Prometheus):
    """Prometheus with a configuration of ours, from a folder of programs."""

    def __init__(self, programs: Path, folder: Path, config: Mapping[str, Any]) -> None:
        super().__init__(folder, "", [])
        (folder / "prometheus.yml").write_text(yaml.safe_dump(dict(config)))
        self.program = str(programs / "prometheus")


@dataclass
class Server:
    """A program that answers at /health when it is up."""

    folder: Path
    address: str = field(init=False)
    health: str = "/health"

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        self.port = free_port()
        self.address = f"http://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str | Path]:
        raise NotImplementedError

    def variables(self) -> Mapping[str, str]:
        return {}

    def __enter__(self) -> Self:
        log = self.folder / "log"
        with log.open("wb") as file:
            self._process = subprocess.Popen(
                self.command(),
                cwd=self.folder,
                env=os.environ | _QUIET | self.variables(),
                stdout=file,
                stderr=file,
                start_new_session=True,
            )
        try:
            until(self._up, f"{type(self).__name__} is up", START_SECONDS)
        except BaseException as error:
            self.__exit__()
            error.add_note(log.read_text()[-2000:])
            raise
        return self

    def __exit__(self, *_: object) -> None:
        end(self._process)

    def _up(self) -> bool:
        assert self._process.poll() is None, "it ended"
        return get(self.address + self.health) is not None


@dataclass
class VictoriaMetrics(Server):
    """A VictoriaMetrics that scrapes what `config` names, and takes OTLP at /opentelemetry/v1/metrics."""

    programs: Path = Path()
    config: Mapping[str, Any] = field(default_factory=dict)

    def command(self) -> Sequence[str | Path]:
        (self.folder / "scrape.yml").write_text(yaml.safe_dump(dict(self.config)))
        return [
            self.programs / "victoria-metrics",
            f"-httpListenAddr=127.0.0.1:{self.port}",
            f"-storageDataPath={self.folder / 'data'}",
            f"-promscrape.config={self.folder / 'scrape.yml'}",
            "-opentelemetry.usePrometheusNaming",
            "-opentelemetry.promoteAllResourceAttributes=false",
            "-opentelemetry.promoteResourceAttributes=service.name,service.instance.id",
            "-opentelemetry.promoteScopeMetadata=false",
            "-memory.allowedBytes=256MiB",
        ]

    def series(self, match: str) -> list[dict[str, str]]:
        """The labels of the series that have a sample now."""
        query = urllib.parse.urlencode({"query": match, "latency_offset": "1ms"})
        answer = json.loads(get(f"{self.address}/api/v1/query?{query}") or "{}")
        return [it["metric"] for it in answer["data"]["result"]]


@dataclass
class Phoenix(Server):
    """Arize Phoenix: OTLP at /v1/traces, and by gRPC at `grpc`."""

    health: str = "/healthz"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._grpc = free_port()
        self.grpc = f"http://127.0.0.1:{self._grpc}"

    def command(self) -> Sequence[str | Path]:
        return [fetch.environment("phoenix") / "phoenix", "serve"]

    def variables(self) -> Mapping[str, str]:
        return {
            "PHOENIX_HOST": "127.0.0.1",
            "PHOENIX_PORT": str(self.port),
            "PHOENIX_GRPC_PORT": str(self._grpc),
            "PHOENIX_WORKING_DIR": str(self.folder),
        }

    def spans(self) -> list[dict[str, Any]]:
        """Every span of the default project, as the REST interface has it."""
        found: list[dict[str, Any]] = []
        cursor: str | None = ""
        while cursor is not None:
            query = urllib.parse.urlencode({"limit": "500"} | ({"cursor": cursor} if cursor else {}))
            page = json.loads(get(f"{self.address}/v1/projects/default/spans?{query}") or "{}")
            found += page.get("data", [])
            cursor = page.get("next_cursor")
        return found


@dataclass
class MLflow(Server):
    """MLflow's tracking server: OTLP at /v1/traces, with the experiment in a header."""

    headers = "x-mlflow-experiment-id=0"

    def command(self) -> Sequence[str | Path]:
        return [
            fetch.environment("mlflow") / "mlflow",
            "server",
            "--host=127.0.0.1",
            f"--port={self.port}",
            "--workers=1",
            f"--backend-store-uri=sqlite:///{self.folder / 'mlflow.db'}",
            f"--artifacts-destination={self.folder / 'artifacts'}",
        ]

    def variables(self) -> Mapping[str, str]:
        programs = fetch.environment("mlflow")
        return {"PATH": f"{programs}:{os.environ['PATH']}", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}

    def spans(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Every span of the experiment with what is known of its trace, by MLflow's own client."""
        command = [fetch.environment("mlflow") / "python", "-c", _SPANS_OF_MLFLOW, self.address]
        done = subprocess.run(command, env=os.environ | _QUIET, capture_output=True, text=True, timeout=200, check=True)
        return [(span, trace) for span, trace in json.loads(done.stdout.splitlines()[-1])]
