"""What the checks on a GPU came to: each judged from what was counted, on any machine."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

import gpu_profile
from measuring import Figure

from detsweep.analysis.control import PLACED

PASS, FAIL, SKIP = "PASS", "FAIL", "SKIP"
FAULTS_WANTED = 200


@dataclass(frozen=True)
class Outcome:
    """What a check came to, in one line and in figures; `details` are lines of their own below it."""

    status: str
    text: str
    figures: Mapping[str, Any] = field(default_factory=dict)
    details: Sequence[str] = ()


def judge_faults(campaigns: Sequence[Mapping[str, Any]]) -> Outcome:
    """Enough of every kind were put in, all were detected, nearly all in their place, and nothing beside them."""
    kinds = [one for counted in campaigns for one in counted["kinds"].values()]
    put_in, detected, placed = (sum(one[key] for one in kinds) for key in ("put_in", "detected", "placed"))
    clean, alarms = (sum(counted[key] for counted in campaigns) for key in ("clean", "false_alarms"))
    lost = sum(counted["not_put_in"] for counted in campaigns)
    wanting = sorted({kind for counted in campaigns for kind in set(counted["expected"]) - set(counted["kinds"])})
    good = put_in >= FAULTS_WANTED and detected == put_in and placed >= PLACED * put_in and not alarms and not wanting
    text = (
        f"{put_in} faults of {len({kind for counted in campaigns for kind in counted['kinds']})} kinds put in, "
        f"{detected} detected, {placed} placed; {alarms} false alarms in {clean} clean comparisons"
        + (f"; {lost} found nothing to change" if lost else "")
        + (f"; none of {', '.join(wanting)}" if wanting else "")
    )
    return Outcome(PASS if good else FAIL, text, {"campaigns": list(campaigns)})


def judge_atomics(rows: Sequence[Mapping[str, Any]], errors: Sequence[str]) -> Outcome:
    """At least one way to accumulate diverges and is named; the ordered one, with the recipe, does not."""
    broken = [row for row in rows if row["verdict"] not in ("pass", "diverged")]
    raced = [row for row in rows if row["part"] == "races" and row["verdict"] == "diverged"]
    named = [row for row in raced if row["operator"]]
    cured = [row for row in rows if row["part"] == "cured"]
    steady = bool(cured) and all(row["verdict"] == "pass" for row in cured)
    text = (
        f"{len(raced)} of {len([row for row in rows if row['part'] == 'races'])} ways to accumulate diverged, "
        f"{len(named)} of them named; the ordered one with the recipe {'stayed' if steady else 'did not stay'} clean"
    )
    good = bool(raced) and bool(named) and steady and not broken and not errors
    return Outcome(PASS if good else FAIL, text, {"cells": list(rows)}, [*map(_race_line, rows), *errors])


def _race_line(row: Mapping[str, Any]) -> str:
    if row["error"]:
        return f"{row['part']}: {row['cell']}: {row['verdict']}: {row['error']}"
    line = f"{row['part']}: {row['cell']}: {row['diverged']}/{row['replays']} replays diverged"
    if row["verdict"] == "diverged":
        line += f", first in {row['first']}"
    if row["drill"]:
        line += f"; closer look: {row['operator'] or row['drill']} ({row['cause'] or 'no cause'})"
    return line


def judge_effects(rows: Sequence[Mapping[str, Any]], costs: Mapping[str, str], device: str) -> Outcome:
    """Nothing asked for is lost, and what can show that it acts does."""
    shown = {"deterministic_algorithms", "fill_uninitialized_memory", "num_threads"}
    if device == "cuda":
        shown |= {"NCCL_ALGO", "CUBLAS_WORKSPACE_CONFIG", "cudnn_deterministic"}
    lost = [row for row in rows if row["status"] == "lost"]
    unshown = [row for row in rows if row["setting"] in shown and row["status"] != "effective"]
    effective = sum(row["status"] == "effective" for row in rows)
    text = f"{effective} of {len(rows)} settings are seen to act, {len(lost)} are lost"
    lines = [f"{row['mitigation']}: {row['setting']} {row['status']}: {row['evidence']}" for row in rows]
    lines += [f"{mitigation}: {words}" for mitigation, words in costs.items()]
    good = bool(rows) and not lost and not unshown
    return Outcome(PASS if good else FAIL, text, {"settings": list(rows), "costs": dict(costs)}, lines)


def judge_levels(figures: Sequence[Figure], errors: Sequence[str]) -> Outcome:
    """Every ratio keeps its limit; `errors` are of models that gave none."""
    missed = [figure for figure in figures if not figure.kept]
    text = f"{len(figures) - len(missed)} of {len(figures)} ratios to observe=off within their limits"
    lines = [
        f"{figure.case}: {median(figure.values):.3f} (limit {figure.limit:g}{'' if figure.kept else ', missed'}; "
        f"{figure.detail})"
        for figure in figures
    ]
    good = bool(figures) and not missed and not errors
    return Outcome(PASS if good else FAIL, text, {"figures": [asdict(one) for one in figures]}, [*lines, *errors])


def judge_waits(found: Mapping[str, gpu_profile.Found], device: str) -> Outcome:
    """Nothing waits for the device while a run goes on, at any level."""
    if device == "cpu":
        return Outcome(SKIP, "a CPU has no kernels to wait for")
    lines = [f"observe={level}: {wait}" for level, one in found.items() for wait in one.waits]
    text = "; ".join(f"observe={level}: {one.kernels} kernels, {len(one.waits)} waits" for level, one in found.items())
    # A trace without kernels shows nothing, and least of all that nothing waits.
    good = not lines and all(one.kernels for one in found.values())
    return Outcome(PASS if good else FAIL, text, {level: asdict(one) for level, one in found.items()}, lines)


def judge_tests(code: int | None, out: str, device: str) -> Outcome:
    """pytest's exit code and the counts of its last line."""
    summary = last_line(out).strip("= ")
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", summary)}
    if code == 0 and device == "cpu" and not counts.get("passed"):
        return Outcome(SKIP, summary, counts)
    good = code == 0 and counts.get("passed", 0) > 0
    lines = [line for line in out.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return Outcome(PASS if good else FAIL, summary or f"pytest left with {code}", counts, lines)


def last_line(text: str) -> str:
    """The last line with something on it."""
    return next((line for line in reversed(text.splitlines()) if line.strip()), "")
