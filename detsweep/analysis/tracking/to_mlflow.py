"""Cells as runs of MLflow: in a store in the sweep's own folder, or wherever MLFLOW_TRACKING_URI says."""

from __future__ import annotations

import logging
import os
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from detsweep.analysis.tracking.runs import Tracked, TrackedRun
from detsweep.analysis.words import counted

EXPERIMENT = "detsweep"
KEY = "detsweep.key"
_LONGEST = 5_000
_OF_A_DIVERGENCE = ("first_site", "first", "cause", "effect", "error")
_SMALL = 20_000_000
"""So many bytes of copies of the matrix in all are no burden."""


def write(sweep: Tracked) -> str:
    """Create or update a run for each cell."""
    own = "MLFLOW_TRACKING_URI" not in os.environ
    folder = sweep.paths.tracker("mlflow")
    uri = _own_store(folder) if own else os.environ["MLFLOW_TRACKING_URI"]
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
    os.environ.setdefault("MLFLOW_LOGGING_LEVEL", "WARNING")
    logging.getLogger("alembic").setLevel(logging.WARNING)
    from mlflow.tracking import MlflowClient

    client = MlflowClient(tracking_uri=uri)
    database = own and uri.startswith("sqlite")
    experiment, artifacts = _experiment(client, f"{folder.as_uri()}/artifacts" if database else None)
    matrices, told = _matrices(sweep, moved=own and not artifacts.startswith(folder.as_uri()))
    for run, matrix in zip(sweep.runs, matrices, strict=True):
        _write_run(client, experiment, run, matrix)
    plain = "" if database else "MLFLOW_ALLOW_FILE_STORE=true "
    look = f"; to look at them: {plain}mlflow ui --backend-store-uri {uri}" if own else ""
    return f"{counted(len(sweep.runs), 'run')} in experiment {_name()} of {uri}{told}{look}"


def _matrices(sweep: Tracked, *, moved: bool) -> tuple[list[Path | None], str]:
    """The matrix for each of the runs, and what there is to say where it is not for all of them."""
    if sweep.matrix is None:
        return [None] * len(sweep.runs), ""
    if moved:
        # mlflow keeps whole paths: it would be put where the folder was.
        return [None] * len(sweep.runs), "; without matrix.md, as the folder was moved since the first time"
    if sweep.matrix.stat().st_size * len(sweep.runs) > _SMALL:
        return [sweep.matrix, *[None] * (len(sweep.runs) - 1)], "; matrix.md is with the first run alone"
    return [sweep.matrix] * len(sweep.runs), ""


def _own_store(folder: Path) -> str:
    """A store in a folder: a database, which mlflow prefers, where it was installed with what that takes."""
    folder.mkdir(exist_ok=True)
    if find_spec("sqlalchemy") is not None and find_spec("alembic") is not None:
        return f"sqlite:///{folder / 'mlflow.db'}"
    # mlflow-skinny has the plain files alone, and newer versions want to be told that they are meant.
    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    return folder.as_uri()


def _name() -> str:
    return os.environ.get("MLFLOW_EXPERIMENT_NAME") or EXPERIMENT


def _experiment(client: Any, artifacts: str | None) -> tuple[str, str]:
    """Id of the experiment, and where its artifacts are; `artifacts`: where they should be, None: as the store does.

    A database knows of no folder for them, and would take the working directory.
    """
    if client.get_experiment_by_name(_name()) is None:
        client.create_experiment(_name(), artifact_location=artifacts)
    found = client.get_experiment_by_name(_name())
    return str(found.experiment_id), str(found.artifact_location)


def _write_run(client: Any, experiment: str, run: TrackedRun, matrix: Path | None) -> None:
    from mlflow.entities import Metric, Param, RunTag

    found = client.search_runs([experiment], f"tags.`{KEY}` = '{run.key}'", max_results=1)
    known = found[0] if found else client.create_run(experiment, run_name=run.name, tags={KEY: run.key})
    own = known.info.run_id
    now = int(time.time() * 1000)
    # A param cannot be changed; with the cell's id in the key it has no reason to.
    params = {name: value for name, value in run.params.items() if name not in known.data.params}
    # Of an earlier time in which the cell had diverged, say.
    for gone in known.data.tags.keys() - run.tags.keys():
        if gone in _OF_A_DIVERGENCE:
            client.delete_tag(own, gone)
    client.log_batch(
        own,
        metrics=[Metric(name, value, now, 0) for name, value in run.metrics.items()],
        params=[Param(name, value[:_LONGEST]) for name, value in params.items()],
        tags=[RunTag(name, value[:_LONGEST]) for name, value in run.tags.items()],
    )
    if matrix is not None:
        client.log_artifact(own, str(matrix))
    client.set_terminated(own, "FAILED" if run.tags["verdict"] in ("error", "timeout", "invalid") else "FINISHED")
