"""A secret with every mark in it, as an axis of a sweep: in whatever way a format writes it, it is not there."""

from __future__ import annotations

import html
import io
import json
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path
from urllib.parse import quote, quote_plus

import jinja2.filters
import markupsafe
import pytest
import zstandard

import detsweep
from detsweep.bundling import make, opened
from detsweep.paths import SweepPaths, read_json, write_json
from tests.support import plan_of, trial_of, write_cells, write_trial

SECRETS = ("oth|er\"s' & <on%e é", "oth&sec|'nd>\"\\ 2")
DERIVED = ("matrix.html", "matrix.md", "matrix.csv", "matrix.json")
ANEW = "made anew from the rest: python -m detsweep.analysis <bundle>"


def _forms(value: str) -> set[str]:
    escaped = str(markupsafe.escape(value))
    inner = json.dumps(value)[1:-1]
    return {
        value, inner, json.dumps(value, ensure_ascii=False)[1:-1], json.dumps(inner)[1:-1],
        escaped, escaped.replace("|", "\\|"), html.escape(value), value.replace("|", "\\|"), value.replace('"', '""'),
        str(jinja2.filters.htmlsafe_json_dumps(value))[1:-1], quote(value), quote(value, safe=""), quote_plus(value),
        re.sub("%[0-9A-F]{2}", lambda found: found[0].lower(), quote(value, safe="")),
        value.replace("'", "'\\''"), shlex.quote(value)[1:-1],
    }  # fmt: skip


def _quoted(value: str) -> str:
    """As Hydra wants a value with marks in it."""
    within = re.sub(r"(\\*)'", lambda found: found[1] * 2 + "\\'", value)
    return f"'{within}'"


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> SweepPaths:
    """A sweep over two such secrets, with all that the analysis makes, and a log that has them in every form."""
    points = [[f"+env.DB_PASSWORD={_quoted(value)}"] for value in SECRETS]
    plan = plan_of(*points, common=["world.nproc_per_node=1"])
    assert {cell.config["env"]["DB_PASSWORD"] for cell in plan.cells} == set(SECRETS)
    paths = write_cells(tmp_path_factory.mktemp("marks") / "x", plan)
    session = read_json(paths.sweep)
    words = ["-m", f"+env.DB_PASSWORD={','.join(map(_quoted, SECRETS))}"]
    session["sessions"][0] |= {"arguments": words, "command": shlex.join(["python", "-m", "detsweep", *words])}
    write_json(paths.sweep, session)
    for cell in plan.cells:
        trial = trial_of(paths, cell)
        write_trial(trial, cell)
        trial.logs.mkdir()
        lines = [f"DB_PASSWORD={form} and then" for value in SECRETS for form in _forms(value)]
        lines += [f"env.DB_PASSWORD: '{form}'" for value in SECRETS for form in _forms(value)]
        trial.rank_log(0).write_text("\n".join([*lines, "another brother has nothing to do with it"]) + "\n")
    for more in ([], ["report", "--format=json"], ["report", "--format=parquet"]):
        command = [sys.executable, "-m", "detsweep.analysis", *more, str(paths.folder)]
        subprocess.run(command, capture_output=True, timeout=120, check=False)
    return paths


def _content(path: Path) -> dict[str, bytes]:
    data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(path.read_bytes())).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return {member.name: archive.extractfile(member).read() for member in archive}  # type: ignore[union-attr]


def test_no_form_of_it_is_in_the_archive_and_no_piece_of_it_is_taken_for_a_secret(
    sweep: SweepPaths, tmp_path: Path
) -> None:
    made = make(sweep.folder, tmp_path / "out.tar.zst", environment={}, redacted=True)
    members = _content(made.path)
    whole = b"\n".join(name.encode() + b"\n" + data for name, data in members.items())
    assert [form for value in SECRETS for form in _forms(value) if form.encode() in whole] == []
    for piece in (b"oth|", b"oth&", b'er"s', b"<on", b"on%e", b"|'nd"):
        assert piece not in whole
    log = next(data for name, data in members.items() if name.endswith(".log"))
    assert b"another brother has nothing to do with it" in log
    assert {one["count"] for one in made.manifest["redaction"]["replaced"] if one["kind"] == "secret"} == {2}


def test_what_the_analysis_made_is_left_out_of_a_redacted_bundle_alone(sweep: SweepPaths, tmp_path: Path) -> None:
    made = {name for name in DERIVED if (sweep.folder / name).is_file()}
    assert made == set(DERIVED)
    assert sweep.frames.is_dir()
    redacted = make(sweep.folder, tmp_path / "redacted.tar.zst", environment={}, redacted=True)
    left_out = {one["name"]: one["why"] for one in redacted.manifest["left_out"]}
    assert {name: left_out.get(name) for name in (*DERIVED, "frames/")} == dict.fromkeys((*DERIVED, "frames/"), ANEW)
    plain = make(sweep.folder, tmp_path / "plain.tar.zst", environment={})
    assert {path.name for path in opened(plain.path).iterdir()} >= {*DERIVED, "frames"}


def test_it_stays_an_axis_and_the_analysis_reads_it(sweep: SweepPaths, tmp_path: Path) -> None:
    made = make(sweep.folder, tmp_path / "out.tar.zst", environment={}, redacted=True)
    after = detsweep.load(opened(made.path))
    assert after.axes == ("env.DB_PASSWORD",)
    values = list(after.trials["env.DB_PASSWORD"])
    assert len({value for value in values if re.fullmatch(r"REDACTED-\d+", value)}) == 2
    told = read_json(SweepPaths(after.folder).sweep)["sessions"][0]
    assert told["arguments"][1] == f"+env.DB_PASSWORD={','.join(values)}"
    assert told["command"].endswith(f" +env.DB_PASSWORD={','.join(values)}")
