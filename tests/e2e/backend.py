"""A real Prometheus (Debian's) that scrapes exporters every second and evaluates the alert rules."""

from __future__ import annotations

import http.client
import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import yaml

from tests.support import PATIENCE, free_port, until

T = TypeVar("T")


class QueryError(Exception):
    """Prometheus refused an expression."""


class Prometheus:
    """Started in `folder`, ended with the context. Targets and rules cannot change while it runs."""

    program = "prometheus"
    flags: Sequence[str] = ()

    def __init__(
        self,
        folder: Path,
        target: str,
        rules: list[Path],
        others: Sequence[str] = (),
        profile: str | None = None,
        **labels: str,
    ) -> None:
        """`profile` is the one that is scraped; None is that of the exporter."""
        config = {
            "global": {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(path) for path in rules],
            "scrape_configs": [
                {
                    "job_name": "accel-exporter",
                    "params": {"profile": [profile]} if profile else {},
                    "static_configs": [{"targets": [target, *others], "labels": labels}],
                }
            ],
        }
        (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
        self._address, self._folder = f"127.0.0.1:{free_port()}", folder

    def __enter__(self) -> Self:
        with (self._folder / "prometheus.log").open("wb") as log:
            self._process = subprocess.Popen(
                [
                    self.program,
                    f"--config.file={self._folder / 'prometheus.yml'}",
                    f"--storage.tsdb.path={self._folder / 'data'}",
                    f"--web.listen-address={self._address}",
                    *self.flags,
                ],
                stdout=log,
                stderr=log,
            )
        try:
            until(lambda: get(f"http://{self._address}/-/ready") is not None, "Prometheus is ready")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        end(self._process)

    def query(self, expr: str, at: float | None = None) -> dict[frozenset[tuple[str, str]], float]:
        """The values of an instant vector by labels. Raises QueryError."""
        parameters = {"query": expr} | ({"time": f"{at:.3f}"} if at else {})
        result = self._api("query?" + urllib.parse.urlencode(parameters))["result"]
        return {frozenset(series["metric"].items()): float(series["value"][1]) for series in result}

    def value(self, expr: str, at: float | None = None) -> float:
        """The one value of an expression that has exactly one."""
        (value,) = self.query(expr, at).values()
        return value

    def samples(self, expr: str, at: float, seconds: int) -> list[tuple[float, float]]:
        """Time and value of every stored sample of exactly one series in the seconds before `at`."""
        parameters = {"query": f"{expr}[{seconds}s]", "time": f"{at:.3f}"}
        (series,) = self._api("query?" + urllib.parse.urlencode(parameters))["result"]
        return [(float(when), float(value)) for when, value in series["values"]]

    def ranges(
        self, expr: str, begin: float, end: float, step: float
    ) -> list[tuple[dict[str, str], list[tuple[float, float]]]]:
        """Labels and samples of each series of an expression, a step apart. Raises QueryError."""
        parameters = {"query": expr, "start": f"{begin:.3f}", "end": f"{end:.3f}", "step": str(step)}
        result = self._api("query_range?" + urllib.parse.urlencode(parameters))["result"]
        return [(it["metric"], [(float(at), float(value)) for at, value in it["values"]]) for it in result]

    def rules(self, stems: Collection[str] = ()) -> list[Mapping[str, Any]]:
        """The rules with their health, and the state of those that alert; of these files, or of all."""
        groups = self._api("rules")["groups"]
        return [rule for group in groups if not stems or Path(group["file"]).stem in stems for rule in group["rules"]]

    def _api(self, path: str) -> Any:
        try:
            with urllib.request.urlopen(f"http://{self._address}/api/v1/{path}", timeout=10) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise QueryError(json.load(error)["error"]) from error


def get(url: str) -> str | None:
    """The body at a URL; None without an answer, and where it is an error."""
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return str(answer.read().decode())
    except (OSError, http.client.HTTPException):
        return None


def end(process: subprocess.Popen[bytes], seconds: float = PATIENCE) -> int:
    """SIGTERM, and SIGKILL when that does not help in time; the exit status."""
    process.terminate()
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()
