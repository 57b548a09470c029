"""The command line: Hydra composes the cells, everything after that is ours."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from detsweep import hydra_errors, schema
from detsweep.dispatch import dry_run, run_trials
from detsweep.paths import SweepPaths, conf_dir
from detsweep.plan import Plan, make_plan

Point = tuple[Sequence[str], Mapping[str, Any]]
WRONG_CONFIGURATION = 2
INTERRUPTED = 130


class ConfigurationError(Exception):
    """The user asked for something that cannot be run; the message is for them."""


def main() -> int:
    """Plan, dispatch and aggregate what the command line asks for; returns the process's exit code."""
    try:
        plan = _plan(sys.argv[1:])
    except ConfigurationError as error:
        for line in str(error).splitlines():
            print(f"detsweep: {line}", file=sys.stderr)
        return WRONG_CONFIGURATION
    if plan is None:
        return 0
    folder = Path(str(plan.options["folder"]))
    if plan.options["dry_run"]:
        _discard_empty(folder)
        dry_run(plan, SweepPaths(folder.absolute()))
        return 0
    return _run(plan, SweepPaths(folder.absolute()), sys.argv[1:])


def _run(plan: Plan, sweep: SweepPaths, arguments: list[str]) -> int:
    """Launch what has no result yet, then the matrix over all that the folder holds, failed cells included."""
    if plan.repeated:
        print(f"detsweep: {plan.repeated} of {plan.repeated + len(plan.cells)} cells are the same as another, left out")
    try:
        completed = run_trials(plan, sweep, arguments)
    except BlockingIOError as error:
        print(f"detsweep: {error}", file=sys.stderr)
        return WRONG_CONFIGURATION
    # pandas takes a third of a second to import: only once there is something to show.
    from detsweep.analysis import exit_code, load, print_report, write_report

    result = load(sweep.folder)
    write_report(result)
    print_report(result)
    print(f"\nresults: {sweep.folder}")
    if completed:
        return exit_code(result)
    folder = f"folder={plan.options['folder']}"
    again = [word for word in arguments if not word.startswith("folder=")]
    print(f"to go on: {shlex.join(['python', '-m', 'detsweep', *again, folder])}")
    return INTERRUPTED


def _plan(arguments: list[str]) -> Plan | None:
    """The cells, or None where Hydra only printed something (--help, --cfg, ...)."""
    if refused := hydra_errors.refuse_plugins(arguments):
        raise ConfigurationError(refused)
    points = _compose()
    if not points:
        return None
    plan = make_plan(points)
    if plan.problems:
        _discard_empty(Path(str(plan.options["folder"])))
        raise ConfigurationError("\n".join(plan.problems))
    return plan


def _compose() -> list[Point]:
    schema.register()
    points: list[Point] = []

    @hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
    def collect(config: DictConfig) -> None:
        own = HydraConfig.get()
        for group in ("hydra/launcher", "hydra/sweeper"):
            if own.runtime.choices[group] != "basic":
                raise ConfigurationError(hydra_errors.plugin_line(group, own.runtime.choices[group]))
        resolved = OmegaConf.to_container(config, resolve=True)
        assert isinstance(resolved, dict)
        # Both follow `folder`, unless the command line sets Hydra's own key.
        resolved["folder"] = own.sweep.dir if own.mode == RunMode.MULTIRUN else own.run.dir
        points.append((list(own.overrides.task), {str(key): value for key, value in resolved.items()}))

    # With this set Hydra raises instead of printing several lines and leaving with 1.
    asked = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        collect()
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        if asked == "1":
            raise
        raise ConfigurationError(hydra_errors.one_line(error)) from error
    finally:
        if asked is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = asked
    return points


def _discard_empty(folder: Path) -> None:
    """Take back the folders that Hydra made while planning, where nothing of a sweep is in them."""
    if SweepPaths(folder).sweep.exists():
        return
    SweepPaths(folder).planned_by_hydra.unlink(missing_ok=True)
    # Of an absolute path only its last part can be ours; of a relative one (runs/<date>/<time>) each part can.
    candidates = [folder] if folder.is_absolute() else [folder, *folder.parents][:-1]
    for path in candidates:
        try:
            path.rmdir()
        except OSError:
            return
