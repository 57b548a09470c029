"""Two ranks that send each other tensors, recorded, and each of them played back without the other.

`python two_ranks.py <folder> <rank>`, one process for each rank; they meet at a file of the folder.
"""

from __future__ import annotations

import sys
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch import Tensor

from detsweep.worker.described import NotReplayableError
from tests.collectives import Tape, bits


def exchange(rank: int, seed: int) -> tuple[list[Tensor], list[str]]:
    """Both post what they expect before they send: whoever waited at once would wait for ever."""
    peer, generator = 1 - rank, torch.Generator().manual_seed(10 * seed + rank)
    sent = [torch.randn(5, generator=generator) for _ in range(4)]
    got = [torch.full((5,), float("nan")) for _ in range(4)]
    order: list[str] = []
    receives = [dist.irecv(got[number], peer, tag=number) for number in range(2)]
    sends = [dist.isend(sent[number], peer, tag=number) for number in range(2)]
    order.append("posted")
    for work in (*reversed(receives), *sends):
        assert work is not None
        work.wait()
    operations = [dist.P2POp(dist.irecv, got[2], peer), dist.P2POp(dist.isend, sent[2], peer)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    # One after the other, as a pipeline's stages do.
    if rank == 0:
        dist.send(sent[3], 1)
        dist.recv(got[3], 1)
    else:
        dist.recv(got[3], 0)
        dist.send(sent[3], 0)
    summed = sent[0].clone()
    dist.all_reduce(summed)
    root = torch.full((5,), float(rank * seed))
    dist.broadcast(root, 1)
    # On the rank that is not the root this is not read, and may be anything.
    shared = functional.broadcast(sent[1] if rank == 0 else torch.randn(5), 0, dist.group.WORLD) + 0
    return [*got, summed, root, shared], order


def never_waited_for(tape: Tape) -> None:
    with tape.record(2):
        dist.isend(torch.zeros(2), 1 - tape.rank)
        dist.irecv(torch.zeros(2), 1 - tape.rank)


def main() -> None:
    folder, rank = Path(sys.argv[1]), int(sys.argv[2])
    meeting = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=2, timeout=timedelta(seconds=30))
    tape = Tape(folder, rank=rank, world_size=2)
    with tape.record():
        live, _ = exchange(rank, 1)
    assert not any(tensor.isnan().any() for tensor in live)
    # A send that nobody waits for delivers nothing that could be missed.
    with tape.record(1):
        got = torch.zeros(2)
        receive = dist.irecv(got, 1 - rank)
        dist.isend(torch.full((2,), float(rank)), 1 - rank)
        assert receive is not None
        receive.wait()
    assert (got.tolist(), tape.step(1).complete) == ([1.0 - rank] * 2, True)
    with pytest.raises(NotReplayableError, match=r"^c10d::recv_ was not waited for by its own handle"):
        never_waited_for(tape)
    dist.barrier()
    dist.destroy_process_group()

    # Alone: nobody else is there.
    from detsweep.worker.sharding import open_group_alone

    open_group_alone(rank, 2)
    with tape.play():
        fed, order = exchange(rank, 1)
    assert order == ["posted"]
    assert [bits(tensor) for tensor in fed] == [bits(tensor) for tensor in live]
    assert (tape.noticed, tape.player.checked) == ([], 6)
    with tape.play():
        fed, _ = exchange(rank, 2)
    # Whatever it sends now, it gets what it got.
    assert [bits(tensor) for tensor in fed] == [bits(tensor) for tensor in live]
    operators = [mismatch.operator for mismatch in tape.noticed]
    own_root = ["c10d.broadcast_"] if rank == 1 else ["_c10d_functional.broadcast"]
    assert operators == ["c10d.send"] * 4 + ["c10d.allreduce_"] + own_root, operators


if __name__ == "__main__":
    main()
