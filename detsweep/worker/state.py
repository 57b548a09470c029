"""The state of a rank at the start of a step, in one file that any program can read: safetensors, no pickle.

Tensors by name: `param.*` and `buffer.*` (a rank's own shards), `optim.<parameter>.<key>`, `random.*`. What is no
tensor (learning rates, steps that are numbers) is JSON in the file's metadata.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from detsweep.fingerprints import local
from detsweep.recording.calls import FORMAT, VERSION, RecordingError
from detsweep.recording.reading import file_digest
from detsweep.worker.snapshot import RandomState


def save(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer | None, device: torch.device) -> str:
    """Write the state whole or not at all; returns the file's digest. Raises OSError where there is no room."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors, about = _state(model, optimizer, device)
    metadata = {"format": FORMAT, "version": str(VERSION), "step": str(step), "about": json.dumps(about)}
    temporary = path.with_name(f".{path.name}.part")
    try:
        save_file(tensors, str(temporary), metadata=metadata)
    except SafetensorError as error:
        temporary.unlink(missing_ok=True)
        raise OSError(0, str(error)) from error
    digest = file_digest(temporary)
    temporary.chmod(0o644)
    temporary.replace(path)
    return digest


@torch.no_grad()
def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None, device: torch.device) -> None:
    """Bring a model, its optimizer and the random states to what a file has, in place.

    Raises RecordingError where the model is not the one that was saved: other names, shapes or dtypes.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file

    with safe_open(str(path), framework="pt") as file:
        about = json.loads(file.metadata()["about"])
    tensors = load_file(str(path))
    live: dict[str, Tensor] = {f"param.{name}": value for name, value in model.named_parameters()}
    live |= {f"buffer.{name}": value for name, value in model.named_buffers()}
    saved = {name: value for name, value in tensors.items() if name.startswith(("param.", "buffer."))}
    if differ := sorted(live.keys() ^ saved.keys()):
        where = "only in the recording" if differ[0] in saved else "not in the recording"
        raise RecordingError(f"{path}: this is another model: {differ[0]} is {where}")
    for name, value in live.items():
        own = local(value)
        if (own.shape, own.dtype) != (saved[name].shape, saved[name].dtype):
            raise RecordingError(
                f"{path}: this is another model: {name} is {own.dtype} {tuple(own.shape)}, "
                f"the recording has {saved[name].dtype} {tuple(saved[name].shape)}"
            )
        own.copy_(saved[name])
    if optimizer is not None:
        _load_optimizer(optimizer, model, tensors, about)
    random = {name.removeprefix("random."): value for name, value in tensors.items() if name.startswith("random.")}
    if device.type != "cuda":
        random.pop("device", None)
    RandomState.from_tensors(random).restore(device)


def _state(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, device: torch.device
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = {f"param.{name}": _own(value) for name, value in model.named_parameters()}
    tensors |= {f"buffer.{name}": _own(value) for name, value in model.named_buffers()}
    tensors |= {f"random.{name}": _own(value) for name, value in RandomState.now(device).tensors().items()}
    about: dict[str, Any] = {"groups": [], "sharded": [], "plain": {}}
    if optimizer is None:
        return tensors, about
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        own = [names[id(parameter)] for parameter in group["params"]]
        rest = {key: value for key, value in group.items() if isinstance(value, (int, float, bool, str, type(None)))}
        about["groups"].append({"params": own, "settings": rest})
    for parameter, values in optimizer.state.items():
        for key, value in values.items():
            name = f"optim.{names[id(parameter)]}.{key}"
            if isinstance(value, Tensor):
                tensors[name] = _own(value)
                if isinstance(value, DTensor):
                    about["sharded"].append(name)
            else:
                about["plain"][name] = value
    return tensors, about


def _load_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor], about: Mapping[str, Any]
) -> None:
    parameters = dict(model.named_parameters())
    for group, saved in zip(optimizer.param_groups, about["groups"], strict=True):
        group.update(saved["settings"])
    optimizer.state.clear()
    for name, parameter in parameters.items():
        prefix = f"optim.{name}."
        state: dict[str, Any] = {}
        for full, value in tensors.items():
            if full.startswith(prefix):
                state[full.removeprefix(prefix)] = _like(value, parameter, sharded=full in about["sharded"])
        state |= {full.removeprefix(prefix): value for full, value in about["plain"].items() if full.startswith(prefix)}
        if state:
            optimizer.state[parameter] = state


def _like(value: Tensor, parameter: Tensor, *, sharded: bool) -> Tensor:
    """A piece of optimizer state where and in the form in which the optimizer keeps it."""
    if not sharded:
        # Counters of steps lie in host memory unless the optimizer says otherwise; all else beside its parameter.
        return value.clone() if value.dim() == 0 else value.to(local(parameter).device)
    assert isinstance(parameter, DTensor)
    return DTensor.from_local(
        value.to(local(parameter).device),
        parameter.device_mesh,
        parameter.placements,
        run_check=False,
        shape=parameter.shape,
        stride=parameter.stride(),
    )


def _own(tensor: Tensor) -> Tensor:
    # A copy of its own memory: safetensors refuses tensors that share it.
    return local(tensor).clone(memory_format=torch.contiguous_format).cpu()
