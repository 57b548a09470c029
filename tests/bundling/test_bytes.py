"""Bytes that are no text: logs that a crash cut off, other encodings, and files of numbers with letters in them."""

from __future__ import annotations

import io
import json
import random
import tarfile
from pathlib import Path

import pytest
import zstandard

from detsweep.bundling import LeakError, make, redaction
from detsweep.bundling.texts import decoded, encoded
from detsweep.paths import SweepPaths
from tests.support import plan_of, trial_of, write_cells, write_trial

TOKEN = "hf_AAAAbbbbCCCCddddEEEE1234"  # noqa: S105
LINE = f"HF_TOKEN={TOKEN} bob@corp-secret.example 10.20.30.40 DB_PASSWORD=kaefer77\n".encode()
GONE = (TOKEN.encode(), b"bob@", b"corp-secret", b"10.20.30.40", b"kaefer77")


@pytest.fixture
def sweep(tmp_path: Path) -> SweepPaths:
    plan = plan_of(["seed=1"])
    paths = write_cells(tmp_path / "runs" / "x", plan)
    write_trial(trial_of(paths, plan.cells[0]), plan.cells[0])
    trial_of(paths, plan.cells[0]).logs.mkdir()
    return paths


def _log(sweep: SweepPaths, name: str = "rank000.log") -> Path:
    return sweep.all_cells()[0].trial(0).logs / name


def _bundled(sweep: SweepPaths) -> tuple[dict[str, bytes], dict[str, str]]:
    """The members of a redacted bundle by the last part of their names, and what was left out and why."""
    path = sweep.folder.parent / "out.tar.zst"
    made = make(sweep.folder, path, environment={}, redacted=True)
    data = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(path.read_bytes())).read()
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        members = {m.name.rpartition("/")[2]: archive.extractfile(m).read() for m in archive}  # type: ignore[union-attr]
    return members, {one["name"].rpartition("/")[2]: one["why"] for one in made.manifest["left_out"]}


ODD = {
    "a byte that is no UTF-8": b"caf\xe9\n",
    "a zero": b"torn\0\n",
    "zeros that a crash left": b"\0" * 4096,
    "a letter cut in two": "caf\u00e9".encode()[:-1] + b"\n",
}


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize("name", ["rank000.log", "stdout"])
def test_a_log_with_odd_bytes_is_redacted_and_keeps_them(sweep: SweepPaths, odd: str, name: str) -> None:
    filler = b"an ordinary line of a log, with nothing in it\n" * 1000
    _log(sweep, name).write_bytes(filler + ODD[odd] + LINE + b"end\xff\n")
    members, left_out = _bundled(sweep)
    assert name not in left_out
    told = members[name]
    assert [word for word in GONE if word in told] == []
    before, _, after = told.partition(ODD[odd])
    assert before.endswith(filler)
    assert after.startswith(b"HF_TOKEN=REDACTED-")
    assert after.endswith(b"end\xff\n")


def test_a_line_of_json_with_an_odd_byte_is_redacted_and_keeps_it(sweep: SweepPaths) -> None:
    _log(sweep, "events.jsonl").write_bytes(b'{"A_TOKEN": "caf\xe9-secret-77", "b": "a\\"b"}\n')
    _log(sweep).write_bytes(b"seen caf\xe9-secret-77 again \xe9\n")
    members, _ = _bundled(sweep)
    assert b'"A_TOKEN": "REDACTED-' in members["events.jsonl"]
    assert members["rank000.log"].startswith(b"seen REDACTED-")
    assert members["rank000.log"].endswith(b" again \xe9\n")


def test_variables_that_end_with_zeros_are_each_one(sweep: SweepPaths) -> None:
    _log(sweep).write_bytes(
        b"A_TOKEN=first-value-1\0B_SECRET=second-value-2\0HOME=/x\0\x1b[31mghp_" + b"a1" * 15 + b"\n"
    )
    members, _ = _bundled(sweep)
    told = members["rank000.log"]
    assert told.count(b"REDACTED-") == 3
    assert b"\0HOME=" in told


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-16-be", "utf-16"])
def test_a_log_of_two_bytes_a_letter_is_left_out_by_name(sweep: SweepPaths, encoding: str) -> None:
    _log(sweep).write_bytes(LINE.decode().encode(encoding))
    _log(sweep, "clean.log").write_bytes("nothing to be seen here\n".encode(encoding))
    members, left_out = _bundled(sweep)
    assert left_out["rank000.log"] == "text of two bytes a letter, and holds a name or a secret"
    assert "clean.log" in members


def test_numbers_with_what_looks_like_a_secret_are_left_out_and_others_are_not(sweep: SweepPaths) -> None:
    numbers = random.Random(3).randbytes(1 << 20)
    shapes = (TOKEN.encode(), b"bob@corp-secret.example", b"10.20.30.40", b"DB_PASSWORD=kaefer77")
    for number, word in enumerate(shapes):
        _log(sweep, f"held{number}.bin").write_bytes(numbers + b"\0" + word + b"\0" + numbers)
    _log(sweep, "clean.bin").write_bytes(numbers)
    members, left_out = _bundled(sweep)
    for number in range(len(shapes)):
        assert left_out[f"held{number}.bin"] == "binary, and holds a name or a secret"
    assert members["clean.bin"] == numbers


@pytest.mark.parametrize(
    "data", [LINE, b"caf\xe9 " + LINE, b"\0\1\2\xff\xfe" * 9 + LINE, LINE.decode().encode("utf-16-le")]
)
def test_a_shape_that_survives_is_found_in_the_bytes_of_any_member(
    sweep: SweepPaths, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = redaction.redact

    def late(*arguments: object) -> redaction.Redaction:
        # As if the redaction had never looked at it.
        done = real(*arguments)  # type: ignore[arg-type]
        (Path(str(arguments[0])) / "late").write_bytes(data)
        return done

    monkeypatch.setattr("detsweep.bundling.making.redact", late)
    with pytest.raises(LeakError, match=r"late holds a (secret|mail|ip) that nobody had seen"):
        make(sweep.folder, sweep.folder.parent / "out.tar.zst", environment={}, redacted=True)


def test_versions_that_look_like_addresses_are_no_leak(sweep: SweepPaths) -> None:
    packages = {"packages": {"nvidia-cublas-cu12": "12.4.5.8"}}
    _log(sweep, "notes.json").write_text(json.dumps(packages))
    members, _ = _bundled(sweep)
    assert json.loads(members["notes.json"]) == packages


@pytest.mark.parametrize("data", [b"caf\xe9\0\n", "caf\u00e9".encode(), b"\xed\xa0\x80", bytes(range(256))])
def test_a_text_makes_the_bytes_again_of_which_it_was_read(data: bytes) -> None:
    text = decoded("x.log", data)
    assert text is not None
    assert encoded(text) == data
