"""What programs print of variables, commands and addresses: nothing of a secret in it is in the bundle."""

from __future__ import annotations

from pathlib import Path

import pytest

from detsweep.bundling import make, opened
from detsweep.paths import SweepPaths
from tests.support import plan_of, trial_of, write_cells, write_trial

PRINTED = {
    "DB_PASSWORD=correct horse battery staple": ("correct", "horse", "battery", "staple"),
    "[rank0]: DB_PASSWORD=correct horse battery staple": ("horse", "battery", "staple"),
    "export DB_PASSWORD=p|q & 'r <s": ("p|q", "'r", "<s"),
    "HF_TOKENS=one-token-1,other-token-2": ("one-token-1", "other-token-2"),
    "GITHUB_PAT=plantedpat1": ("plantedpat1",),
    "DATABASE_URL=postgres://me:p/w@rd@db7.corp.example.org/x": ("p/w@rd", "db7", "corp.example"),
    "ID_RSA=b3BlbnNzaC1rZXkt": ("b3BlbnNzaC1rZXkt",),
    "openai_key: planted-value-77": ("planted-value-77",),
    "ftp_pass=planted77": ("planted77",),
    "curl -sS -u mallory:planted77 https://h.example.org/x": ("mallory", "planted77"),
    "wget --password planted77 x": ("planted77",),
    "get https://b.s3/x?X-Amz-Credential=PLANTEDID1%2F2026&X-Amz-Signature=0a1b2c3d4e": ("PLANTEDID1", "0a1b2c3d4e"),
    "get https://a.blob/x?sv=2024&sig=plan%2Bted%3D&se=2": ("plan%2Bted", "plan+ted"),
}
PIECES = ("horse", "battery", "staple", "p|q", "'r", "<s", "db7", "corp.example", "plan%2Bted", "plan+ted")
"""Which are only pieces of a secret or of a name, and may be anything where they stand alone."""


@pytest.mark.parametrize("line", PRINTED)
def test_nothing_of_it_is_left(line: str, tmp_path: Path) -> None:
    plan = plan_of(["seed=1"])
    sweep = write_cells(tmp_path / "x", plan)
    trial = trial_of(sweep, plan.cells[0])
    write_trial(trial, plan.cells[0])
    trial.logs.mkdir()
    again = "".join(f"then {word} once more\n" for word in PRINTED[line] if word not in PIECES)
    trial.rank_log(0).write_text(f"PATH=/usr/bin\n{line}\nLANG=C.UTF-8\n{again}")
    made = make(sweep.folder, tmp_path / "out.tar.zst", environment={}, redacted=True)
    told = SweepPaths(opened(made.path)).all_cells()[0].trial(0).rank_log(0).read_text()
    assert [word for word in PRINTED[line] if word in told] == []
    assert told.startswith("PATH=/usr/bin\n")
    assert "\nLANG=C.UTF-8\n" in told
