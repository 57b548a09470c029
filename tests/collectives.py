"""Every collective that a group of one rank can issue, and a tape that records what is issued and plays it back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor, nn

from detsweep.fingerprints import xxh3
from detsweep.paths import RecordingPaths, write_json
from detsweep.recording import Step, open_rank
from detsweep.recording.calls import FORMAT, VERSION
from detsweep.worker.collectives import FAULT, Collectives
from detsweep.worker.parted import Mismatch
from detsweep.worker.player import Player
from detsweep.worker.recorder import Options, Recorder

MODULE = "blocks.1.ffn"
PHASE = "backward"
_FUNCTIONAL = torch.ops._c10d_functional
Issue = Callable[[list[Tensor], list[Tensor], bool], Any]


def position() -> tuple[str, str]:
    """Where in the model execution is, as a tape is told."""
    return MODULE, PHASE


@dataclass(frozen=True)
class Case:
    """A collective as a program issues it: `issue` is given what to send, where to, and whether not to wait.

    It returns a work, tensors that have to be waited for, or nothing. `in_place`: what is sent and what is delivered
    are the same tensors, the second that it is given. `asynchronous`: what the operator says when it is issued so.
    """

    name: str
    operator: str
    issue: Issue
    tensors: int = 1
    in_place: bool = False
    reduce: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)
    can_wait: bool = True
    says: bool = True

    @property
    def functional(self) -> bool:
        return self.operator.startswith("_c10d_functional")

    def run(self, sent: Sequence[Tensor], into: Sequence[Tensor], *, asynchronous: bool = False) -> list[Tensor]:
        """Issue it, wait for it, and return what it delivered."""
        return delivered(self.issue(list(sent), list(into), asynchronous), into)


def delivered(issued: Any, into: Sequence[Tensor]) -> list[Tensor]:
    """Wait for what a collective returned; what it brought."""
    if isinstance(issued, (Tensor, list, tuple)):
        results = [issued] if isinstance(issued, Tensor) else issued
        return [_FUNCTIONAL.wait_tensor(one) for one in results]
    if issued is not None:
        issued.wait()
    return list(into)


def _coalesced(one: Callable[[Tensor, Tensor], object]) -> Issue:
    def issue(sent: list[Tensor], into: list[Tensor], asynchronous: bool) -> Any:
        with dist.distributed_c10d._coalescing_manager(async_ops=asynchronous) as manager:
            for pair in zip(sent, into, strict=True):
                one(*pair)
        return manager if asynchronous else None

    return issue


def _world() -> Any:
    return dist.group.WORLD


def group_name() -> str:
    """The name by which functional collectives have the group of all ranks."""
    return cast(str, _world().group_name)


SUM = dist.ReduceOp.SUM
C10D = (
    Case(
        "all_gather_into_tensor",
        "c10d._allgather_base_",
        lambda s, i, a: dist.all_gather_into_tensor(i[0], s[0], async_op=a),
    ),
    Case("all_gather", "c10d.allgather_", lambda s, i, a: dist.all_gather(i, s[0], async_op=a)),
    Case(
        "reduce_scatter_tensor",
        "c10d._reduce_scatter_base_",
        lambda s, i, a: dist.reduce_scatter_tensor(i[0], s[0], async_op=a),
        reduce="sum",
    ),
    Case(
        "reduce_scatter",
        "c10d.reduce_scatter_",
        lambda s, i, a: dist.reduce_scatter(i[0], s, op=dist.ReduceOp.MIN, async_op=a),
        reduce="min",
    ),
    Case(
        "all_reduce",
        "c10d.allreduce_",
        lambda _, i, a: dist.all_reduce(i[0], op=dist.ReduceOp.MAX, async_op=a),
        in_place=True,
        reduce="max",
    ),
    Case(
        "broadcast",
        "c10d.broadcast_",
        lambda _, i, a: dist.broadcast(i[0], 0, async_op=a),
        in_place=True,
        arguments={"root_rank": 0, "root_tensor": 0},
    ),
    Case("all_to_all_single", "c10d.alltoall_base_", lambda s, i, a: dist.all_to_all_single(i[0], s[0], async_op=a)),
    Case(
        "all_to_all_single with splits",
        "c10d.alltoall_base_",
        lambda s, i, a: dist.all_to_all_single(i[0], s[0], [4], [4], async_op=a),
        arguments={"output_split_sizes": [4], "input_split_sizes": [4]},
    ),
    Case("all_to_all", "c10d.alltoall_", lambda s, i, a: dist.all_to_all(i, s, async_op=a)),
    Case(
        "gather",
        "c10d.gather_",
        lambda s, i, a: dist.gather(s[0], i, 0, async_op=a),
        arguments={"root_rank": 0},
    ),
    Case(
        "scatter",
        "c10d.scatter_",
        lambda s, i, a: dist.scatter(i[0], s, 0, async_op=a),
        arguments={"root_rank": 0},
    ),
    Case(
        "reduce",
        "c10d.reduce_",
        lambda _, i, a: dist.reduce(i[0], 0, async_op=a),
        in_place=True,
        reduce="sum",
        arguments={"root_rank": 0, "root_tensor": 0},
    ),
    Case("barrier", "c10d.barrier", lambda _, __, a: dist.barrier(async_op=a), tensors=0),
    Case(
        "monitored_barrier",
        "c10d.monitored_barrier_",
        lambda _, __, ___: dist.monitored_barrier(),
        tensors=0,
        arguments={"wait_all_ranks": False},
        can_wait=False,
        says=False,
    ),
    Case(
        "all_gather_coalesced",
        "c10d.allgather_coalesced_",
        lambda s, i, a: dist.all_gather_coalesced([i], s, async_op=a),
        tensors=2,
        can_wait=False,
    ),
    Case(
        "all_reduce_coalesced",
        "c10d.allreduce_coalesced_",
        lambda _, i, a: dist.all_reduce_coalesced(i, async_op=a),
        tensors=2,
        in_place=True,
        reduce="sum",
        can_wait=False,
    ),
    Case(
        "gathered all_reduce",
        "c10d.allreduce_coalesced_",
        _coalesced(lambda _, i: dist.all_reduce(i, op=dist.ReduceOp.MAX)),
        tensors=2,
        in_place=True,
        reduce="max",
    ),
    Case(
        "gathered all_gather",
        "c10d.allgather_into_tensor_coalesced_",
        _coalesced(lambda s, i: dist.all_gather_into_tensor(i, s)),
        tensors=2,
    ),
    Case(
        "gathered reduce_scatter",
        "c10d.reduce_scatter_tensor_coalesced_",
        _coalesced(lambda s, i: dist.reduce_scatter_tensor(i, s)),
        tensors=2,
        reduce="sum",
    ),
)
FUNCTIONAL = (
    Case(
        "all_gather",
        "_c10d_functional.all_gather_into_tensor",
        lambda s, _, __: functional.all_gather_tensor(s[0], 0, _world()),
        arguments={"group_size": 1},
    ),
    Case(
        "all_gather coalesced",
        "_c10d_functional.all_gather_into_tensor_coalesced",
        lambda s, _, __: functional.all_gather_into_tensor_coalesced(s, _world()),
        tensors=2,
        arguments={"group_size": 1},
    ),
    Case(
        "all_reduce",
        "_c10d_functional.all_reduce",
        lambda s, _, __: functional.all_reduce(s[0], "max", _world()),
        reduce="max",
    ),
    Case(
        "all_reduce coalesced",
        "_c10d_functional.all_reduce_coalesced",
        lambda s, _, __: functional.all_reduce_coalesced(s, "sum", _world()),
        tensors=2,
        reduce="sum",
    ),
    Case(
        "all_reduce in place",
        "_c10d_functional.all_reduce_",
        lambda _, i, __: _FUNCTIONAL.all_reduce_(i[0], "sum", group_name()),
        in_place=True,
        reduce="sum",
    ),
    Case(
        "all_reduce coalesced in place",
        "_c10d_functional.all_reduce_coalesced_",
        lambda _, i, __: _FUNCTIONAL.all_reduce_coalesced_(i, "sum", group_name()),
        tensors=2,
        in_place=True,
        reduce="sum",
    ),
    Case(
        "all_to_all",
        "_c10d_functional.all_to_all_single",
        lambda s, _, __: functional.all_to_all_single(s[0], [4], [4], _world()),
        arguments={"output_split_sizes": [4], "input_split_sizes": [4]},
    ),
    Case(
        "broadcast",
        "_c10d_functional.broadcast",
        lambda s, _, __: functional.broadcast(s[0], 0, _world()),
        arguments={"src": 0},
    ),
    Case(
        "broadcast in place",
        "_c10d_functional.broadcast_",
        lambda _, i, __: _FUNCTIONAL.broadcast_(i[0], 0, group_name()),
        in_place=True,
        arguments={"src": 0},
    ),
    Case(
        "reduce_scatter",
        "_c10d_functional.reduce_scatter_tensor",
        lambda s, _, __: functional.reduce_scatter_tensor(s[0], "sum", 0, _world()),
        reduce="sum",
        arguments={"group_size": 1},
    ),
    Case(
        "reduce_scatter coalesced",
        "_c10d_functional.reduce_scatter_tensor_coalesced",
        lambda s, _, __: functional.reduce_scatter_tensor_coalesced(s, "sum", [0, 0], _world()),
        tensors=2,
        reduce="sum",
        arguments={"group_size": 1},
    ),
)
ISSUED = [
    *((case, False) for case in C10D),
    *((case, True) for case in C10D if case.can_wait),
    *((case, True) for case in FUNCTIONAL),
]
"""Each case, and whether the program goes on before it is over."""
ISSUED_IDS = [
    f"{'functional ' * case.functional}{case.name}{' async' * (asynchronous and not case.functional)}"
    for case, asynchronous in ISSUED
]


class Tape:
    """What one rank records in a folder, and what is played back from there."""

    def __init__(self, folder: Path, *, rank: int = 0, world_size: int = 1, options: Options | None = None) -> None:
        self.collectives = Collectives()
        self.recording = RecordingPaths(folder / "recording")
        self.rank = rank
        if rank == 0:
            write_json(self.recording.about, {"format": FORMAT, "version": VERSION, "world_size": world_size})
        self.model = nn.Linear(2, 2)
        self.recorder = Recorder(
            self.collectives,
            self.recording.rank(rank),
            options or Options(),
            rank=rank,
            checksum="xxh3",
            fingerprint=xxh3,
            position=position,
            device=torch.device("cpu"),
        )
        self.noticed: list[Mismatch] = []
        self.player = Player(
            self.collectives,
            fingerprint=xxh3,
            position=position,
            device=torch.device("cpu"),
            noticed=self.noticed.append,
        )

    def record(self, number: int = 0) -> Any:
        """Collectives inside this context are recorded as a step."""
        return self.recorder.step(number, self.model, None)

    def step(self, number: int = 0) -> Step:
        """A recorded step, as it is on disk."""
        return open_rank(self.recording, self.rank).step(number)

    def contents(self, number: int = 0) -> list[list[bytes]]:
        """The bytes of the outputs of each call of a step."""
        step = self.step(number)
        return [[bytes(step.bytes_of(call, side)) for side in call.outputs] for call in step.calls]

    @contextmanager
    def play(self, number: int = 0, *, until: int | None = None) -> Iterator[None]:
        """Collectives inside this context are fed from a step; one that goes on to the process group fails."""

        def nobody(func: Any, args: tuple[Any, ...], go_on: Callable[[], Any]) -> Any:
            raise AssertionError(f"{func.name()} was issued")

        self.player.begin()
        with self.collectives.layer(FAULT, nobody), self.player.step(self.step(number), until=until):
            yield


def bits(tensor: Tensor) -> bytes:
    """The bytes of a tensor in row-major order: NaN equals itself, and zero has a sign."""
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
