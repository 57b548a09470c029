"""Stressors: there while the step runs and gone after it, and not a bit of the step is another for them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from detsweep.fingerprints import local
from detsweep.worker import stress as stressors
from detsweep.worker.snapshot import RandomState
from detsweep.worker.stress import Contention, Stress
from tests.running import alive, eventually, gone
from tests.support import group_of_one, one_thread

CPU = torch.device("cpu")
NAMES = ("none", "jitter", "contention", "churn")
MAX_MS = 0.2


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    state = RandomState.now(CPU)
    with one_thread():
        yield
    state.restore(CPU)


@pytest.fixture
def delays(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Seconds of every delay, none of which is waited for."""
    asked: list[float] = []
    monkeypatch.setattr(time, "sleep", asked.append)
    return asked


def _model() -> nn.Sequential:
    torch.manual_seed(5)
    block = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Dropout(0.1), nn.Linear(32, 16))
    return nn.Sequential(nn.Embedding(20, 16), block, nn.LayerNorm(16), nn.Linear(16, 20))


def _stress(
    name: str,
    model: nn.Module,
    *,
    max_ms: float = MAX_MS,
    seed: int = 3,
    rank: int = 0,
    device: torch.device = CPU,
) -> Stress:
    return Stress({"stress": {"name": name, "max_ms": max_ms}}, model=model, seed=seed, rank=rank, device=device)


def _step(model: nn.Module) -> list[Tensor]:
    """Output and gradients of a step that draws random numbers."""
    model.zero_grad()
    torch.manual_seed(7)
    device = next(model.parameters()).device
    output = model(torch.arange(60, device=device) % 20)
    output.square().mean().backward()
    return [
        output.detach(),
        *(parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None),
    ]


def _random_states() -> dict[str, bytes]:
    return {name: state.numpy().tobytes() for name, state in RandomState.now(CPU).tensors().items()}


def _hooks(model: nn.Module) -> int:
    return sum(len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules())


# --- every stressor --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NAMES)
def test_not_a_bit_of_a_step_changes(name: str) -> None:
    model = _model()
    plain = _step(model)
    with _stress(name, model) as stress:
        for run in (1, 2, 3):
            stress.before_run(0, run)
            stressed = _step(model)
            assert len(stressed) == len(plain) == 10
            assert all(torch.equal(one, other) for one, other in zip(plain, stressed, strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_random_states_stay_where_they_are(name: str) -> None:
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    before = _random_states()
    with _stress(name, model) as stress:
        for run in (1, 2):
            stress.before_run(0, run)
            model(torch.ones(2, 4)).sum().backward()
    assert _random_states() == before


@pytest.mark.parametrize("name", NAMES)
def test_hooks_are_gone_after_it_even_where_the_step_failed(name: str) -> None:
    model = _model()
    with _stress(name, model):
        assert (_hooks(model) > 0) == (name == "jitter")
    assert _hooks(model) == 0
    with pytest.raises(IndexError), _stress(name, model):
        model(torch.tensor([[99]]))
    assert _hooks(model) == 0


# --- jitter ----------------------------------------------------------------------------------------------------------


def _schedule(delays: list[float], *, seed: int = 3, rank: int = 0, step: int = 0, run: int = 1) -> list[float]:
    model = _model()
    with _stress("jitter", model, seed=seed, rank=rank) as stress:
        stress.before_run(step, run)
        delays.clear()
        _step(model)
    return list(delays)


def test_a_runs_delays_repeat(delays: list[float]) -> None:
    assert _schedule(delays) == _schedule(delays)


def test_a_runs_delays_do_not_depend_on_the_runs_before(delays: list[float]) -> None:
    model = _model()
    with _stress("jitter", model) as stress:
        for run in (1, 2):
            stress.before_run(0, run)
            delays.clear()
            _step(model)
    assert delays == _schedule(delays, run=2)


@pytest.mark.parametrize("other", [{"seed": 4}, {"rank": 1}, {"step": 1}, {"run": 2}], ids=str)
def test_each_seed_rank_step_and_run_has_delays_of_its_own(delays: list[float], other: dict[str, int]) -> None:
    one, another = _schedule(delays), _schedule(delays, **other)
    assert len(one) == len(another)
    assert set(one).isdisjoint(another)


def test_every_module_is_delayed_in_forward_and_in_backward(delays: list[float]) -> None:
    model = _model()
    modules = sum(1 for _ in model.modules())
    with _stress("jitter", model) as stress:
        stress.before_run(0, 1)
        output = model(torch.ones(1, 2, dtype=torch.int64))
        assert len(delays) == modules
        output.sum().backward()
    assert len(delays) == 2 * modules
    assert all(0.0 <= delay <= MAX_MS / 1e3 for delay in delays)
    assert len(set(delays)) == len(delays)


def test_the_delays_are_waited_for() -> None:
    model = _model()
    draw = random.Random("3:0:0:1")
    asked = sum(draw.uniform(0.0, 0.02) for _ in model.modules())
    with _stress("jitter", model, max_ms=20.0) as stress:
        stress.before_run(0, 1)
        start = time.perf_counter()
        with torch.no_grad():
            model(torch.ones(1, 2, dtype=torch.int64))
        assert 0.0 < asked <= time.perf_counter() - start


def test_nothing_is_delayed_before_the_first_run_and_after_the_last(delays: list[float]) -> None:
    model = _model()
    with _stress("jitter", model) as stress:
        _step(model)
        assert delays == []
        stress.before_run(0, 1)
        output = model(torch.ones(1, 2, dtype=torch.int64))
    taken = len(delays)
    output.sum().backward()
    _step(model)
    assert len(delays) == taken > 0


def test_a_module_that_returns_a_parameter_is_not_hooked_again_and_again(delays: list[float]) -> None:
    class Constant(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

        def forward(self) -> Tensor:
            return self.weight

    model = Constant()
    with _stress("jitter", model) as stress:
        stress.before_run(0, 1)
        for _ in range(3):
            model().sum().backward()
    assert len(delays) == 3
    assert not model.weight._backward_hooks


def test_a_delay_comes_before_fsdp2_gathers_parameters(monkeypatch: pytest.MonkeyPatch) -> None:
    with group_of_one():
        model = _model()
        mesh = init_device_mesh("cpu", (1,))
        for part in (model[1], model):
            fully_shard(part, mesh=mesh)
        plain = _step(model)
        sharded: list[bool] = []
        monkeypatch.setattr(time, "sleep", lambda _: sharded.append(isinstance(model[3].weight, DTensor)))
        with _stress("jitter", model) as stress:
            stress.before_run(0, 1)
            stressed = _step(model)
        # The root's own parameters: sharded when its delay comes, gathered at all others of its forward.
        assert sharded[:9] == [True] + [False] * 8
        assert all(torch.equal(local(one), local(other)) for one, other in zip(plain, stressed, strict=True))


# --- contention ------------------------------------------------------------------------------------------------------


def _pid(stress: Stress) -> int:
    assert isinstance(stress.stressor, Contention)
    assert stress.stressor.process is not None
    return stress.stressor.process.pid


def _cpu_ticks(pid: int) -> int:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return int(fields[11]) + int(fields[12])


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def test_a_process_keeps_a_core_busy_and_is_reaped() -> None:
    with _stress("contention", _model()) as stress:
        pid = _pid(stress)
        assert alive(pid)
        start = _cpu_ticks(pid)
        eventually(lambda: True if _cpu_ticks(pid) >= start + 5 else None, 10.0)
        # It is light to start: nothing of torch is in it.
        assert "torch" not in Path(f"/proc/{pid}/maps").read_text()
        eventually(lambda: True if _resident_bytes(pid) > 2 * stressors.COPIED_BYTES else None, 10.0)
    assert not Path(f"/proc/{pid}").exists()


def test_it_is_gone_after_a_step_that_failed() -> None:
    stress, model = _stress("contention", _model()), _model()
    with pytest.raises(IndexError), stress:
        model(torch.tensor([[99]]))
    assert not Path(f"/proc/{_pid(stress)}").exists()


def test_a_run_without_its_competitor_is_refused() -> None:
    with _stress("contention", _model()) as stress:
        stress.before_run(0, 1)
        os.kill(_pid(stress), signal.SIGKILL)
        gone([_pid(stress)])
        with pytest.raises(RuntimeError, match="competing process ended with -9"):
            stress.before_run(0, 2)


def test_a_competitor_that_cannot_start_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stressors, "COMPETITOR", "raise SystemExit(5)")
    with pytest.raises(RuntimeError, match="competing process ended with 5"), _stress("contention", _model()):
        pass


@pytest.mark.skipif(torch.cuda.is_available(), reason="is about a GPU that does not work")
def test_products_that_fail_are_an_error_and_leave_nothing() -> None:
    stress = _stress("contention", _model(), device=torch.device("cuda", 0))
    with pytest.raises(RuntimeError, match="products on the GPU have failed"), stress:
        pass
    assert not Path(f"/proc/{_pid(stress)}").exists()
    assert "stress-products" not in {thread.name for thread in threading.enumerate()}


OWNER = """
import sys, torch
from detsweep.worker.stress import Stress
model = torch.nn.Linear(2, 2)
with Stress({"stress": {"name": "contention"}}, model=model, seed=0, rank=0, device=torch.device("cpu")) as stress:
    print(stress.stressor.process.pid, flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is Linux's")
def test_it_dies_with_a_rank_that_is_killed() -> None:
    with subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner:
        try:
            assert owner.stdout is not None
            competitor = int(owner.stdout.readline())
            assert alive(competitor)
        finally:
            owner.kill()
    gone([competitor])


# --- churn -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of everything that torch.empty is asked for."""
    asked: list[int] = []
    empty: Callable[..., Tensor] = torch.empty

    def counting(*arguments: object, **options: object) -> Tensor:
        made = empty(*arguments, **options)
        asked.append(made.nbytes)
        return made

    monkeypatch.setattr(torch, "empty", counting)
    return asked


def test_blocks_of_many_sizes_are_bounded_in_number_and_size(sizes: list[int]) -> None:
    with _stress("churn", _model()) as stress:
        for run in range(5):
            sizes.clear()
            stress.before_run(0, run)
            assert len(sizes) == 64
            assert len(set(sizes)) > 50
            assert min(sizes) >= 1 << 10
            assert max(sizes) <= 1 << 22
            assert sum(sizes) <= 1 << 28


def test_blocks_are_those_of_the_seed_rank_step_and_run(sizes: list[int]) -> None:
    taken = []
    for seed, rank, step, run in [(3, 0, 0, 1), (3, 0, 0, 1), (4, 0, 0, 1), (3, 1, 0, 1), (3, 0, 1, 1), (3, 0, 0, 2)]:
        with _stress("churn", _model(), seed=seed, rank=rank) as stress:
            sizes.clear()
            stress.before_run(step, run)
        taken.append(tuple(sizes))
    assert taken[0] == taken[1]
    assert len(set(taken)) == 5


@pytest.mark.parametrize("size", [1 << 20, 1 << 23])
def test_memory_that_was_not_initialised_differs_from_run_to_run(size: int) -> None:
    most_of_it = set()
    with _stress("churn", _model()) as stress:
        for run in range(8):
            stress.before_run(0, run)
            words, counts = torch.empty(size // 8, dtype=torch.int64).unique(return_counts=True)
            most_of_it.add(int(words[counts.argmax()]))
    assert len(most_of_it) > 4


# --- on a GPU --------------------------------------------------------------------------------------------------------


on_a_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")


@pytest.mark.gpu
@on_a_gpu
@pytest.mark.parametrize("name", NAMES)
def test_not_a_bit_changes_on_a_gpu(name: str) -> None:
    device = torch.device("cuda", 0)
    model = _model().to(device)
    plain = _step(model)
    state = torch.cuda.get_rng_state(device)
    with _stress(name, model, device=device) as stress:
        for run in (1, 2, 3):
            stress.before_run(0, run)
            torch.cuda.synchronize(device)
            stressed = _step(model)
            assert all(torch.equal(one, other) for one, other in zip(plain, stressed, strict=True))
    assert _hooks(model) == 0
    assert torch.equal(torch.cuda.get_rng_state(device), state)


@pytest.mark.gpu
@on_a_gpu
def test_products_run_beside_the_step_and_end_with_it() -> None:
    device = torch.device("cuda", 0)
    with _stress("contention", _model(), device=device):
        allocated = torch.cuda.memory_allocated(device)
        assert "stress-products" in {thread.name for thread in threading.enumerate()}
        time.sleep(0.2)
        assert torch.cuda.memory_allocated(device) == allocated
    assert "stress-products" not in {thread.name for thread in threading.enumerate()}
    assert torch.cuda.memory_allocated(device) < allocated
