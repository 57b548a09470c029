"""What was redacted is equal to whatever it may have been, and to nothing else."""

from __future__ import annotations

import pytest

from detsweep.environment import environment_differences
from detsweep.environment.redacted import alike


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("<path-1>/torchinductor_root", "/scratch/torchinductor_root"),
        ("<path-1>/torchinductor_user-1", "/scratch/torchinductor_mallory"),
        ("<path-1>/a", "<path-2>/a"),
        ("<home>/a", "<sweep>/a"),
        ("<python>/lib:/usr/lib", "/opt/conda/lib:/usr/lib"),
        ("tcp://REDACTED-1@node-1:80", "tcp://me:pass@gpu17.example.org:80"),
        ("REDACTED-1", "REDACTED-2"),
        ("ip-1", "10.0.0.3"),
        ("GPU-uuid-1", "GPU-0a1b2c3d-1111-2222-3333-444455556666"),
        ("x", "x"),
        ("nodex-1", "gpu17"),
    ],
)
def test_what_may_have_been_equal_is_no_difference(one: str, other: str) -> None:
    assert alike(one, other)
    assert alike(other, one)
    assert environment_differences({"variables": {"X": one}}, {"variables": {"X": other}}) == []


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("<path-1>/torchinductor_root", "/scratch/other"),
        ("<path-1>/a", "/scratch/a:/scratch/b"),
        ("<path-1>/a:/b", "/scratch/a:/c"),
        ("<path-1>", ""),
        ("<path-1>", "Ring"),
        ("REDACTED-1", ""),
        ("REDACTED-1", None),
        ("node-1", "node-2"),
        ("node-1", None),
        ("node-1:80", "gpu17:81"),
        ("ip-10-0-0-1", "ip-10-0-0-2"),
        ("ip-10-0-0-1", "gpu17"),
        ("<5", "7"),
        ("Ring", "Tree"),
    ],
)
def test_what_is_left_still_counts(one: str, other: str | None) -> None:
    assert not alike(one, other)
    assert not alike(other, one)
