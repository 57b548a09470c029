"""What keeps the step company: a race that needs other timing, a busy machine or other memory gets it.

None of it may change a bit of a step that has no race: nothing here takes part in the step's computation, and
everything that is drawn comes from a generator of its own, never from the random states that the step uses.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import detsweep
from detsweep.orphans import PARENT_VARIABLE

BLOCKS, KEPT_BLOCKS = 64, 8
BLOCK_BYTES = (10, 22)
"""Powers of two between which a churned block's size lies: 1 KiB and 4 MiB, so that all are 256 MiB at most."""
COPIED_BYTES = 1 << 26
"""Of each of the two buffers that a competing process copies to and fro: together more than most caches hold."""
PRODUCTS, PRODUCT_SIZE = 4, 4096

COMPETITOR = """
import os, signal, sys
size, package, expected = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
sys.path.append(package)
from detsweep.orphans import die_with_parent
die_with_parent(signal.SIGKILL)
here, there = memoryview(bytearray(size)), memoryview(bytearray(size))
print(flush=True)
while os.getppid() == expected:
    here[:] = there
    there[:] = here
"""


class Stressor:
    """A kind of company; this one, `none`, is nothing at all."""

    @contextmanager
    def running(self) -> Iterator[None]:
        """What runs beside the step runs inside this context, and nothing of it is left after it."""
        yield

    def before_run(self, draw: random.Random, /) -> None:
        """Between two runs; `draw` is for the run that comes and for nothing else."""


class Jitter(Stressor):
    """The host sleeps for a drawn time before each submodule, and in backward before its output's gradient goes on.

    On a GPU that delays the launches of kernels and collectives, not the kernels: streams meet in another order, and
    ranks at other times. Before the first `before_run` nothing is delayed. In a region that torch.compile traces
    nothing is delayed either, so that it stays whole.
    """

    def __init__(self, model: nn.Module, max_ms: float) -> None:
        self._model = model
        self._max_ms = max_ms
        self._draw: random.Random | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        with ExitStack() as hooks:
            for module in self._model.modules():
                hooks.callback(module.register_forward_pre_hook(self._before, prepend=True).remove)
                hooks.callback(module.register_forward_hook(self._after, prepend=True).remove)
            # A graph that was made inside may still be walked outside, and has hooks of its own.
            hooks.callback(self._end)
            yield

    def before_run(self, draw: random.Random, /) -> None:
        self._draw = draw

    def _end(self) -> None:
        self._draw = None

    def _before(self, _: nn.Module, __: object) -> None:
        if not torch.compiler.is_compiling():
            self._delay()

    def _after(self, _: nn.Module, __: object, output: object) -> None:
        # A leaf would keep its hook for good.
        if not torch.compiler.is_compiling() and isinstance(output, Tensor) and not output.is_leaf:
            output.register_hook(self._delay)

    def _delay(self, _: Tensor | None = None) -> None:
        if self._draw is not None:
            time.sleep(self._draw.uniform(0.0, self._max_ms) / 1e3)


class Contention(Stressor):
    """A process of this rank's own copies memory without end; on a GPU a side stream multiplies matrices as well."""

    def __init__(self, device: torch.device) -> None:
        self._products = Products(device) if device.type == "cuda" else None
        self.process: subprocess.Popen[bytes] | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        products = nullcontext() if self._products is None else self._products.running()
        with competitor() as self.process, products:
            yield

    def before_run(self, _: random.Random, /) -> None:
        # Or the run would be taken for one under contention.
        if self.process is not None and self.process.poll() is not None:
            raise RuntimeError(f"stress=contention: the competing process ended with {self.process.returncode}")
        if self._products is not None:
            self._products.check()


class Products:
    """Matrix products without end on a stream of their own, launched by a thread of their own, a few at a time.

    Not launched by the step: whoever times a run waits for the device first, which would be the end of products from
    before it; and products from within it would be seen by whatever watches or counts the operators of its thread.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._begun = threading.Event()
        self._over = threading.Event()
        self._error: Exception | None = None

    @contextmanager
    def running(self) -> Iterator[None]:
        """The products run inside this context; from its beginning on they allocate nothing."""
        thread = threading.Thread(target=self._run, name="stress-products", daemon=True)
        thread.start()
        try:
            self._begun.wait()
            self.check()
            yield
        finally:
            self._over.set()
            thread.join()

    def check(self) -> None:
        """Raises RuntimeError where the products have come to an end."""
        if self._error is not None:
            raise RuntimeError("stress=contention: the products on the GPU have failed") from self._error

    def _run(self) -> None:
        try:
            stream, done = torch.cuda.Stream(self._device), torch.cuda.Event(blocking=True)
            with torch.no_grad(), torch.cuda.stream(stream):
                factor = torch.ones(PRODUCT_SIZE, PRODUCT_SIZE, dtype=torch.bfloat16, device=self._device)
                product = torch.empty_like(factor)
                while not self._over.is_set():
                    for _ in range(PRODUCTS):
                        torch.mm(factor, factor, out=product)
                    done.record(stream)
                    done.synchronize()
                    self._begun.set()
        except Exception as error:
            self._error = error
            self._begun.set()


class Churn(Stressor):
    """Blocks of drawn sizes are filled with drawn garbage and freed in a drawn order.

    Memory that a step leaves uninitialised then holds something else in each run. A few blocks stay until the next
    run: they keep the allocator from giving the rest back to the system, which would hand out zeros, and they put
    the run's own tensors at other addresses. On a GPU these are blocks of the current stream's pool.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._kept: list[Tensor] = []

    @contextmanager
    def running(self) -> Iterator[None]:
        try:
            yield
        finally:
            self._kept.clear()

    def before_run(self, draw: random.Random, /) -> None:
        self._kept.clear()
        # Small sizes as often as large ones.
        sizes = [int(2 ** draw.uniform(*BLOCK_BYTES)) // 8 for _ in range(BLOCKS)]
        for size in sizes:
            self._kept.append(torch.empty(size, dtype=torch.int64, device=self._device).fill_(draw.getrandbits(63)))
        draw.shuffle(self._kept)
        while len(self._kept) > KEPT_BLOCKS:
            self._kept.pop()


class Stress:
    """The company of one rank's steps.

    Enter it when the model is sharded, so that its hooks come before FSDP2's, and from the main thread: the kernel
    ends a competing process with the thread that started it.
    """

    def __init__(
        self, config: Mapping[str, Any], *, model: nn.Module, seed: int, rank: int, device: torch.device
    ) -> None:
        self._origin = f"{seed}:{rank}"
        self._running = ExitStack()
        kinds: dict[str, Callable[[], Stressor]] = {
            "none": Stressor,
            "jitter": lambda: Jitter(model, config["stress"]["max_ms"]),
            "contention": lambda: Contention(device),
            "churn": lambda: Churn(device),
        }
        self.stressor = kinds[config["stress"]["name"]]()

    def __enter__(self) -> Stress:
        self._running.enter_context(self.stressor.running())
        return self

    def __exit__(self, *_: object) -> None:
        self._running.close()

    def before_run(self, step: int, run: int) -> None:
        """Between runs: what is drawn for this one depends on seed, rank, step and run alone."""
        self.stressor.before_run(random.Random(f"{self._origin}:{step}:{run}"))


@contextmanager
def competitor() -> Iterator[subprocess.Popen[bytes]]:
    """A process that copies memory and so keeps a core busy, while this context lasts and this process lives."""
    # It finds this package where it was found here, and imports no torch.
    package, parent = Path(detsweep.__file__).parent.parent, str(os.getpid())
    with subprocess.Popen(
        [sys.executable, "-c", COMPETITOR, str(COPIED_BYTES), str(package), parent],
        env={**os.environ, PARENT_VARIABLE: parent},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
    ) as process:
        try:
            assert process.stdout is not None
            # It says when it begins; where its output ends before, it has failed.
            if not process.stdout.read(1):
                raise RuntimeError(f"stress=contention: the competing process ended with {process.wait()}")
            yield process
        finally:
            process.kill()
