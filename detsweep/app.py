"""The command line: Hydra composes the cells, everything after that is ours."""

from __future__ import annotations

import os
import shlex
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from detsweep import __version__, environment, hydra_errors, schema, search, sweeper, trackers
from detsweep.capture import SCHEMA
from detsweep.composing import Point, point_of
from detsweep.dispatch import ClusterError, FolderBusyError, dry_run, run_trials
from detsweep.mitigations import load_presets
from detsweep.output import tolerate_broken_output
from detsweep.paths import FileError, SweepPaths, conf_dir, write_json
from detsweep.plan import Cell, Plan, make_plan

WRONG_CONFIGURATION = 2
NO_VERDICT = 3
INTERRUPTED = 130
_STATUS = ("python", "-m", "detsweep.status")
GROUPS_OF_PLUGINS = ("hydra/launcher", "hydra/sweeper")


class ConfigurationError(Exception):
    """The user asked for something that cannot be run; the message is for them, a line for each mistake."""


def main() -> int:
    """Plan, dispatch and aggregate what the command line asks for; returns the process's exit code.

    A crash of detsweep itself never leaves with 1, which says that something diverged.
    """
    if sys.argv[1:] == ["--version"]:
        print(f"detsweep {__version__}")
        return 0
    tolerate_broken_output()
    try:
        arguments = sys.argv[1:]
        planned = _plan(arguments)
        if planned is None:
            return 0
        plan, folders = planned
        sweep = SweepPaths(Path(str(plan.options["folder"])).absolute())
        task = _task(plan, folders, arguments)
        _say_notes(plan, task)
        if plan.options["dry_run"]:
            dry_run(plan, sweep)
            if task is not None:
                print(f"search={task[0].name}: from this cell on, over {', '.join(task[0].items)}")
            return 0
        _refuse_foreign(sweep)
        return _run(plan, sweep, arguments, None if task is None else task[0])
    except (ConfigurationError, ClusterError, FolderBusyError) as error:
        return _complain(str(error), WRONG_CONFIGURATION)
    except KeyboardInterrupt:
        return _complain("interrupted", INTERRUPTED)
    except (FileError, OSError) as error:
        return _complain(str(error), NO_VERDICT)
    except Exception:
        traceback.print_exc()
        return NO_VERDICT


def _complain(text: str, code: int) -> int:
    for line in text.splitlines():
        print(f"detsweep: {line}", file=sys.stderr)
    return code


def _plan(arguments: list[str]) -> tuple[Plan, list[Path]] | None:
    """The cells, and the folders of configuration, the user's own last; None where Hydra only printed something.

    (--help, --cfg, ...)
    """
    if refused := hydra_errors.refuse(arguments):
        raise ConfigurationError(refused)
    with tempfile.TemporaryDirectory(prefix="detsweep-") as scratch:
        points = _compose(arguments, scratch)
        resolved = [(point.overrides, _resolved(point, scratch)) for point in points]
    if not points:
        return None
    folders = list(points[0].own.folders)
    plan = make_plan(resolved, folders)
    if plan.problems:
        raise ConfigurationError("\n".join(plan.problems))
    if line := trackers.problem(str(plan.options["log"])):
        raise ConfigurationError(line)
    return plan, folders


def _task(plan: Plan, folders: list[Path], arguments: list[str]) -> tuple[search.Task, list[str]] | None:
    """What is searched, and what of that is left out; None where every cell of the plan is run."""
    if plan.options["search"]["name"] == "none":
        return None
    if lines := list(search.contradictions(plan.cells)):
        raise ConfigurationError("\n".join(lines))

    def compose(changes: Mapping[str, str]) -> Cell:
        kept = [word for word in arguments if word.lstrip("+~").partition("=")[0] not in changes]
        # Beside the other overrides: Hydra does not take them on both sides of its own options.
        place = next((place for place, word in enumerate(kept) if "=" in word and not word.startswith("-")), 0)
        changed = [f"{key}={value}" for key, value in changes.items()]
        try:
            planned = _plan([*kept[:place], *changed, *kept[place:]])
        except ConfigurationError as error:
            raise ValueError(str(error)) from None
        assert planned is not None
        return planned[0].cells[0]

    try:
        return search.task_of(plan.cells[0], load_presets(folders), compose)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def _say_notes(plan: Plan, task: tuple[search.Task, list[str]] | None) -> None:
    notes = [*plan.notes, *(task[1] if task else ())]
    if kept_out := environment.kept_out(os.environ, [cell.spec(0)["settings"]["env"] for cell in plan.cells]):
        notes.append(f"kept out of the trials: this shell's {', '.join(kept_out)} (keep_env=[NAME] lets one in)")
    for note in notes:
        print(f"detsweep: note: {note}", file=sys.stderr)


def _compose(arguments: list[str], scratch: str) -> list[Point]:
    """Each point of the sweep; none where Hydra only printed something."""
    schema.register()
    sweeper.register()
    OmegaConf.register_new_resolver("detsweep.scratch", lambda: scratch, replace=True)
    points: list[Point | tuple[DictConfig, HydraConf]] = []

    @hydra.main(version_base="1.3", config_path=str(conf_dir()), config_name="config")
    def collect(config: DictConfig | Point) -> None:
        points.append(config if isinstance(config, Point) else (config, HydraConfig.get()))

    # What Hydra's usage calls the program.
    sys.argv = ["detsweep", *arguments]
    # With this set Hydra raises instead of printing several lines and leaving with 1.
    asked = os.environ.get("HYDRA_FULL_ERROR")
    os.environ["HYDRA_FULL_ERROR"] = "1"
    try:
        collect()
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        if asked == "1":
            traceback.print_exc()
        raise ConfigurationError(hydra_errors.one_line(error)) from error
    finally:
        if asked is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = asked
    return [point if isinstance(point, Point) else point_of(*point) for point in points]


def _resolved(point: Point, scratch: str) -> Mapping[str, Any]:
    own, resolved = point.own, point.config
    for group in GROUPS_OF_PLUGINS:
        if own.choices[group] != "basic":
            raise ConfigurationError(hydra_errors.plugin_line(group, own.choices[group]))
    if isinstance(resolved, OmegaConfBaseException):
        raise ConfigurationError(hydra_errors.one_line(resolved)) from resolved
    # Hydra's own keys name the sweep's folder too, where the command line sets them.
    named = {"hydra.sweep.dir": own.sweep_dir, "hydra.run.dir": own.run_dir}
    chosen = named.pop("hydra.sweep.dir" if own.multirun else "hydra.run.dir")
    for key, value in named.items():
        if value != scratch:
            raise ConfigurationError(f"{key}={value}: does not apply here; use folder=PATH")
    return resolved if chosen == scratch else {**resolved, "folder": chosen}


def _refuse_foreign(sweep: SweepPaths) -> None:
    """Keep out of a folder that holds something else, and name one that cannot be made."""
    try:
        sweep.folder.mkdir(parents=True, exist_ok=True)
        strange = not sweep.jobs.exists() and not sweep.sweep.exists() and any(sweep.folder.iterdir())
        sweep.jobs.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"folder={sweep.folder}: {error.strerror}") from error
    if strange:
        sweep.jobs.rmdir()
        raise ConfigurationError(f"folder={sweep.folder}: holds files and is no sweep; name a new or an empty folder")


def _run(plan: Plan, sweep: SweepPaths, arguments: list[str], task: search.Task | None) -> int:
    """Launch what has no result yet, then the matrix over all that the folder holds, failed cells included."""
    if plan.repeated:
        print(f"{plan.repeated} of {plan.repeated + len(plan.cells)} cells are the same as another, and left out")

    def run_search(launch: search.Launch) -> None:
        assert task is not None
        search.search(task, launch, print, lambda state: write_json(sweep.search, {"schema": SCHEMA, **state}))

    completed = run_trials(plan, sweep, arguments, run_search if task else None)
    if completed and plan.options["launch"]["detach"]:
        print(f"how it goes: {shlex.join([*_STATUS, str(plan.options['folder'])])}")
        print(f"to wait for the rest, and for the matrix: {_again(plan, arguments, detached=False)}")
        return 0
    if not completed:
        # All processes are gone and what is left takes a second: a further Ctrl-C would only cost the report.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    # pandas takes a third of a second to import: only once there is something to show.
    from detsweep.analysis import exit_code, load, print_report, write_report

    result = load(sweep.folder)
    print_report(result)
    write_report(result)
    others = set(result.trials["cell"]) - {cell.id for cell in plan.cells}
    if others and not task:
        print(f"{len(others)} of these cells are from earlier commands on this folder")
    print(f"\nresults: {sweep.folder}")
    if completed:
        code = exit_code(result)
        _log(str(plan.options["log"]), sweep)
        return code
    print(f"to go on: {_again(plan, arguments)}")
    return INTERRUPTED


def _log(tracker: str, sweep: SweepPaths) -> None:
    """Tell a tracker what came out; that it could not be told is said, and changes nothing."""
    if tracker == "none":
        return
    sys.stdout.flush()
    if line := trackers.log_sweep(tracker, sweep.folder):
        print(f"detsweep: note: {line}", file=sys.stderr)


def again(arguments: Sequence[str], folder: str, replaced: tuple[str, ...]) -> list[str]:
    """The arguments of a command without those that begin as `replaced`, and with the folder of its sweep."""
    words = [word for word in arguments if not word.lstrip("+").startswith(replaced)]
    # Beside the other overrides: Hydra does not take them on both sides of its own options.
    overrides = [place for place, word in enumerate(words, start=1) if "=" in word and not word.startswith("-")]
    place = overrides[-1] if overrides else len(words)
    return [*words[:place], f"folder={folder}", *words[place:]]


def _again(plan: Plan, arguments: list[str], *, detached: bool = True) -> str:
    """The command that goes on with this sweep."""
    replaced = ("folder=", "hydra.run.dir=", "hydra.sweep.dir=", *(() if detached else ("launch.detach=",)))
    words = again(arguments, str(plan.options["folder"]), replaced)
    return shlex.join(["python", "-m", "detsweep", *words])
