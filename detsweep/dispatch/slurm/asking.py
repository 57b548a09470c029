"""Questions to Slurm: what the controller knows of our jobs, what accounting does, what may be submitted."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from detsweep.nodes import ClusterError, plain_environment

TIMEOUT_S = 120
_DEFAULT_ARRAY = 1001
# scancel takes many jobs at once; a command line does not.
_AT_ONCE = 200


class AwayError(Exception):
    """Slurm gives no answer for now: the controller is down, or accounting is."""


@dataclass(frozen=True)
class Element:
    """A job, or an element of an array, as Slurm has it; `detail` is why it waits, or its exit code."""

    name: str
    state: str
    nodes: str
    detail: str


def queue() -> dict[str, Element]:
    """All jobs of this user that the controller knows, ended ones for a while (MinJobAge) included, by their ids.

    An element of an array has the id <array>_<index>. Raises AwayError where the controller does not answer.
    """
    lines = _ask(["squeue", "--me", "--noheader", "--array", "--states=all", "--format=%i|%j|%T|%N|%r"])
    # A job of somebody else's making can have a name with a line break in it.
    return {job: Element(*rest) for job, *rest in (line.split("|", 4) for line in lines) if len(rest) == 4}


def accounting(jobs: Iterable[str], names: Iterable[str] = ()) -> dict[str, Element]:
    """What accounting says of jobs, or of all that have one of `names`. Raises AwayError where there is none."""
    arrays = sorted({job.partition("_")[0] for job in jobs})
    words = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobID,JobName,State,NodeList,ExitCode"]
    words += [f"--jobs={','.join(arrays)}"] if arrays else [f"--name={','.join(names)}", "--starttime=now-7days"]
    found = {}
    for line in _ask(words):
        job, name, state, nodes, code = line.split("|", 4)
        # `CANCELLED by 1000` says who, and elements that have not begun share a line: 12_[3-9].
        for one in expand(job):
            found[one] = Element(name, state.split()[0] if state else "", nodes, f"exit code {code}")
    return found


def largest_array() -> int:
    """How many elements one array may have."""
    text = "\n".join(_ask(["scontrol", "show", "config"]))
    sizes = [int(size) for size in re.findall(r"^MaxArraySize\s*=\s*(\d+)", text, re.MULTILINE)]
    tasks = [int(size) for size in re.findall(r"max_array_tasks=(\d+)", text)]
    return max(1, min([*sizes, *tasks], default=_DEFAULT_ARRAY))


def cancel(jobs: Iterable[str]) -> None:
    """Cancel jobs by their ids. Raises AwayError where the controller does not answer.

    One that it has forgotten is over, and no reason to leave the others.
    """
    words = compressed(jobs)
    for place in range(0, len(words), _AT_ONCE):
        done = _run(["scancel", *words[place : place + _AT_ONCE]])
        if done.returncode != 0 and transient(done.stderr):
            raise AwayError(f"scancel: {said(done.stderr)}")


def compressed(jobs: Iterable[str]) -> list[str]:
    """Ids with the elements of an array together, as Slurm's commands take them: 12_[0-3,7]."""
    arrays: dict[str, list[int]] = {}
    alone = []
    for job in jobs:
        array, _, index = job.partition("_")
        if index:
            arrays.setdefault(array, []).append(int(index))
        else:
            alone.append(job)
    return [*alone, *(f"{array}_[{','.join(_runs(sorted(found)))}]" for array, found in arrays.items())]


def expand(job: str) -> list[str]:
    """The ids of `12_[0-3,7%2]`: one for each element."""
    found = re.fullmatch(r"(\d+)_\[([\d,-]+)(?:%\d+)?\]", job)
    if found is None:
        return [job]
    indices: list[int] = []
    for part in found[2].split(","):
        first, _, last = part.partition("-")
        indices += range(int(first), int(last or first) + 1)
    return [f"{found[1]}_{index}" for index in indices]


def test(words: Sequence[str]) -> str | None:
    """Why Slurm would refuse a job with these arguments of sbatch; None where it would take it, now or later."""
    done = _run(["sbatch", "--test-only", *words, "--wrap=true"])
    if done.returncode == 0 or transient(done.stderr) or re.search("busy", done.stderr, re.IGNORECASE):
        return None
    return said(done.stderr)


def transient(text: str) -> bool:
    """Whether an error of Slurm's commands is one that passes."""
    return re.search(_PASSES, text, re.IGNORECASE) is not None


_PASSES = (
    r"unable to contact|socket timed out|connection (refused|reset|timed out)|connect failure|temporarily|zero bytes"
    r"|standby|try again|not responding|configuration source|MaxSubmitJob|transport endpoint|too many"
    r"|communication (connection|shutdown)"
)


def said(text: str) -> str:
    """The one line of an error text that matters, without the command's own prefix."""
    lines = [re.sub(r"^(\w+: )?(error: |fatal: )?", "", line).strip() for line in text.splitlines() if line.strip()]
    telling = [line for line in lines if re.search(r"fail|invalid|error|refus|unable|not ", line, re.IGNORECASE)]
    return (telling or lines or ["no word of why"])[-1]


def _runs(numbers: Sequence[int]) -> Iterator[str]:
    first = last = numbers[0]
    for number in [*numbers[1:], None]:
        if number is not None and number == last + 1:
            last = number
            continue
        yield str(first) if first == last else f"{first}-{last}"
        if number is not None:
            first = last = number


def _ask(words: list[str]) -> list[str]:
    done = _run(words)
    if done.returncode != 0:
        raise AwayError(f"{words[0]}: {said(done.stderr or done.stdout)}")
    return [line for line in done.stdout.splitlines() if line.strip()]


def _run(words: list[str]) -> subprocess.CompletedProcess[str]:
    try:
        # A session of its own: a Ctrl-C is the driver's business.
        return subprocess.run(
            words,
            capture_output=True,
            text=True,
            check=False,
            timeout=TIMEOUT_S,
            # sacct would else shorten long lists of elements: 12_[1,3,5,...]
            env={**plain_environment(), "SLURM_BITSTR_LEN": "0"},
            start_new_session=True,
        )
    except FileNotFoundError:
        raise ClusterError(f"launch=slurm: no {words[0]} on PATH: this machine cannot reach a Slurm cluster") from None
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(words, 1, "", f"{words[0]}: not responding for {TIMEOUT_S} s")
