"""`python -m detsweep.replay <trial folder> --rank 3`: run one rank of a recording alone, without the others.

`python -m detsweep.replay diff <a> <b>` compares two recordings with each other.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detsweep import mitigations, recordings, replayreport
from detsweep.arguments import PlainParser
from detsweep.capture import LEVELS
from detsweep.dispatch.replaying import run
from detsweep.environment import visible_gpus
from detsweep.output import tolerate_broken_output
from detsweep.paths import FileError, conf_dir
from detsweep.recording import RankRecording, open_rank
from detsweep.recording.streams import streams_of
from detsweep.recordings import Subject
from detsweep.replays import WRONG, Request

INTERRUPTED = 130
EPILOG = """\
examples:
  python -m detsweep.replay runs/x/cells/mode-record-2a2dd5ceca/trial0 --all      every rank, one after the other
  python -m detsweep.replay runs/x/cells/mode-record-2a2dd5ceca --rank 3 --step 17
  ... --rank 3 --step 17 --observe op          name the operators that ran before the first difference
  ... --rank 3 --repeat 100                    does this rank's compute repeat on this device?
  ... --rank 3 --mitigation torch_strict       which setting changes the result?
  ... --rank 3 --pdb                           stop in the debugger at the first difference
  python -m detsweep.replay diff a/trial0 b/trial0

exit codes: 0 bit for bit as recorded, 1 something differs, 2 what was asked makes no sense, 3 a replay failed,
130 interrupted
"""


def main() -> int:
    """Run one command and return its exit code (see EPILOG)."""
    tolerate_broken_output()
    words = sys.argv[1:]
    try:
        return _diff(words[1:]) if words[:1] == ["diff"] else _replay(words)
    except (FileError, ValueError) as error:
        print(f"detsweep: {error}", file=sys.stderr)
        return WRONG
    except KeyboardInterrupt:
        return INTERRUPTED


def _replay(words: Sequence[str]) -> int:
    asked = _parser().parse_args(words)
    subject = recordings.subject_of(Path(asked.folder))
    world_size = int(subject.about["world_size"])
    ranks = list(range(world_size)) if asked.all else [asked.rank]
    opened = [open_rank(subject.recording, rank) for rank in ranks]
    requests = [_request(asked, subject, one) for one in opened]
    for line in [*recordings.notes(subject.about, requests[0].device), *recordings.shortcomings(opened)]:
        print(f"note: {line}")
    worst = 0
    for request in requests:
        passes, seconds = run(request, subject)
        if isinstance(passes, int):
            worst = max(worst, passes)
            continue
        print("\n".join(replayreport.lines(request, passes, seconds)), flush=True)
        worst = max(worst, 0 if all(found.clean for found in passes) else 1)
    if len(ranks) > 1:
        words_of = {0: f"all {len(ranks)} ranks are bit for bit as recorded", 1: "not all ranks are as recorded"}
        print(words_of.get(worst, "not all ranks could be replayed"))
    return worst


def _request(asked: argparse.Namespace, subject: Subject, one: RankRecording) -> Request:
    """What to ask of a rank. Raises FileError or ValueError for what the recording does not have."""
    first, last = _steps(asked.step)
    window = one.window(first, last)
    first = window[0] if first is None else first
    streams_of(one, subject.records(one.rank), range(first, window[-1] + 1))
    for number in window:
        recorded = one.step(number)
        recorded.check()
        if recorded.header.checksum != one.about["checksum"]:
            raise FileError(
                f"{recorded.paths.log(number)} has digests of {recorded.header.checksum}, not of the others'"
            )
        if recorded.header.payload == "digest":
            raise ValueError(
                f"{recorded.paths.log(number)} was recorded with record.payload=digest: there is nothing to replay with"
            )
    device = asked.device or str(one.about["device"])
    if (
        subject.spec is not None
        and subject.spec["config"]["compile"]
        and asked.observe in ("module", "collective", "op")
    ):
        raise ValueError(
            f"--observe {asked.observe}: cannot look into compiled blocks; it would replace them by others"
        )
    if subject.spec is None:
        _only_of_trials(asked, device, str(one.about["device"]))
    if device == "cuda" and not visible_gpus():
        raise ValueError("--device cuda: this machine has no GPU (valid: cpu)")
    if asked.until is not None and not 0 <= asked.until < len(one.step(window[-1]).calls):
        calls = len(one.step(window[-1]).calls)
        raise ValueError(f"--until {asked.until}: step {window[-1]} has calls 0 to {calls - 1}")
    return Request(
        str(subject.folder),
        one.rank,
        window[0],
        first,
        window[-1],
        device,
        asked.observe,
        asked.repeat,
        asked.until,
        asked.pdb,
        asked.with_fault,
        _settings(asked.mitigation, subject.spec),
    )


def _only_of_trials(asked: argparse.Namespace, device: str, recorded: str) -> None:
    """Of a program of the user's own detsweep does not know how to build what it would need."""
    if device != recorded:
        raise ValueError(
            f"--device {device}: the program that was recorded chooses its device itself, it took {recorded}"
        )
    for name, value, unset in (
        ("observe", asked.observe, None),
        ("repeat", asked.repeat, 1),
        ("pdb", asked.pdb, False),
    ):
        if value != unset:
            raise ValueError(f"--{name}: only of recordings that mode=record made, not of a program of your own")


def _steps(text: str | None) -> tuple[int | None, int | None]:
    """`17` and `10..12` as first and last; None where nothing is asked for."""
    if text is None:
        return None, None
    first, dots, last = text.partition("..")
    try:
        return int(first), int(last) if dots else int(first)
    except ValueError:
        raise ValueError(f"--step {text}: valid: a number (17) or a range (10..12)") from None


def _settings(names: Sequence[str], spec: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The recording's settings with more presets on top; None where none is asked for."""
    if not names:
        return None
    presets = mitigations.load_presets([conf_dir()])
    more = mitigations.chosen(presets, list(names), "--mitigation")
    config = {"mitigation": {}, "env": {}} if spec is None else spec["config"]
    together = {**config["mitigation"], **{preset.name: preset.raw() for preset in more}}
    return mitigations.combine(together, config["env"]).to_json()


def _diff(words: Sequence[str]) -> int:
    parser = PlainParser(prog="python -m detsweep.replay diff", description="Compare two recordings, rank by rank")
    parser.add_argument("a", help="trial folder of the one")
    parser.add_argument("b", help="trial folder of the other")
    asked = parser.parse_args(words)
    lines, same = recordings.diff(*(recordings.subject_of(Path(folder)).recording for folder in (asked.a, asked.b)))
    print("\n".join(lines))
    return 0 if same else 1


def _parser() -> argparse.ArgumentParser:
    parser = PlainParser(
        prog="python -m detsweep.replay",
        description="Run one rank of a recorded trial alone, and compare all that it computes with the recording.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", help="a trial's folder, or its cell's where it has one trial")
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--rank", type=int, help="the rank to replay")
    which.add_argument("--all", action="store_true", help="every rank in turn")
    parser.add_argument("--step", help="a step (17) or steps (10..12); default: all that are recorded")
    parser.add_argument("--device", choices=("cpu", "cuda"), help="default: the one it was recorded on")
    parser.add_argument("--observe", choices=LEVELS, help="look closer (or less close) than the recording did")
    parser.add_argument("--repeat", type=_count, default=1, metavar="N", help="replay N times from the same snapshot")
    parser.add_argument("--until", type=int, metavar="SEQ", help="stop at this call of the last step")
    parser.add_argument("--pdb", action="store_true", help="enter the debugger at the first difference, or at --until")
    parser.add_argument("--mitigation", action="append", default=[], metavar="NAME", help="add a preset's settings")
    parser.add_argument("--with-fault", action="store_true", help="put in the fault that the recorded trial had")
    return parser


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text}: must be at least 1")
    return int(text)


if __name__ == "__main__":
    sys.exit(main())
