"""The state of a rank at the start of a step, in one file that any program can read: safetensors, no pickle.

Tensors by name: `param.*` and `buffer.*` (a rank's own shards), `optim.<parameter>.<key>`, `group.<number>.<key>` (of
a group of parameters, where a learning rate is a tensor), `random.*`. What is no tensor (other learning rates, steps
that are numbers) is JSON in the file's metadata.
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


def save(
    path: Path,
    step: int,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    device: torch.device,
    *,
    more: Mapping[str, Any] | None = None,
) -> str:
    """Write the state whole or not at all; returns the file's digest.

    `more`: further objects with state_dict and load_state_dict, by name. Raises OSError where there is no room,
    TypeError where a state has what JSON cannot hold.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    tensors, about = _state(model, optimizer, device)
    about["more"] = {name: one.state_dict() for name, one in (more or {}).items()}
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
def load(
    path: Path,
    model: nn.Module,
    optimizer: torch.optim.Optimizer | None,
    device: torch.device,
    *,
    more: Mapping[str, Any] | None = None,
) -> None:
    """Bring a model, its optimizer and the random states to what a file has, in place.

    Raises RecordingError where the model is not the one that was saved (other names, shapes or dtypes), or where the
    optimizer is not.
    """
    from safetensors import safe_open
    from safetensors.torch import load_file

    with safe_open(str(path), framework="pt") as file:
        about = json.loads(file.metadata()["about"])
    if (more or {}).keys() != about["more"].keys():
        raise RecordingError(f"{path}: it has the state of {[*about['more']]}, asked for is that of {[*(more or {})]}")
    tensors = load_file(str(path))
    live: dict[str, Tensor] = {f"param.{name}": value for name, value in model.named_parameters()}
    live |= {f"buffer.{name}": value for name, value in model.named_buffers()}
    saved = {name: value for name, value in tensors.items() if name.startswith(("param.", "buffer."))}
    if optimizer is not None:
        _check_optimizer(path, optimizer, model, about)
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
    for name, one in (more or {}).items():
        one.load_state_dict(about["more"][name])
    RandomState.from_tensors(random).restore(device)


def _state(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, device: torch.device
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    tensors = {f"param.{name}": _own(value) for name, value in model.named_parameters()}
    tensors |= {f"buffer.{name}": _own(value) for name, value in model.named_buffers()}
    tensors |= {f"random.{name}": _own(value) for name, value in RandomState.now(device).tensors().items()}
    about: dict[str, Any] = {"device": device.type, "groups": [], "sharded": [], "on_host": [], "plain": {}}
    if optimizer is None:
        return tensors, about
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    about["kind"] = type(optimizer).__name__
    for number, (group, own) in enumerate(zip(optimizer.param_groups, _groups(optimizer, model), strict=True)):
        rest = {key: value for key, value in group.items() if key != "params" and _plain(value)}
        about["groups"].append({"params": own, "settings": rest})
        tensors |= {f"group.{number}.{key}": _own(value) for key, value in group.items() if isinstance(value, Tensor)}
    for parameter, values in optimizer.state.items():
        for key, value in values.items():
            name = f"optim.{names[id(parameter)]}.{key}"
            if isinstance(value, Tensor):
                tensors[name] = _own(value)
                if isinstance(value, DTensor):
                    about["sharded"].append(name)
                if local(value).device.type == "cpu":
                    about["on_host"].append(name)
            else:
                about["plain"][name] = value
    return tensors, about


def _load_optimizer(
    optimizer: torch.optim.Optimizer, model: nn.Module, tensors: Mapping[str, Tensor], about: Mapping[str, Any]
) -> None:
    parameters = dict(model.named_parameters())
    for number, (group, saved) in enumerate(zip(optimizer.param_groups, about["groups"], strict=True)):
        for key, value in saved["settings"].items():
            group[key] = tuple(value) if isinstance(value, list) and isinstance(group.get(key), tuple) else value
        prefix = f"group.{number}."
        for full, value in tensors.items():
            if full.startswith(prefix):
                _load_setting(group, full.removeprefix(prefix), value)
    optimizer.state.clear()
    for name, parameter in parameters.items():
        prefix = f"optim.{name}."
        state: dict[str, Any] = {}
        for full, value in tensors.items():
            if full.startswith(prefix):
                # On the CPU all lies in one place: there counters of steps, which stay on the host, go by their shape.
                on_host = full in about["on_host"] and (about["device"] != "cpu" or value.dim() == 0)
                sharded = full in about["sharded"]
                state[full.removeprefix(prefix)] = _like(value, parameter, sharded=sharded, on_host=on_host)
        state |= {full.removeprefix(prefix): value for full, value in about["plain"].items() if full.startswith(prefix)}
        if state:
            optimizer.state[parameter] = state


def _load_setting(group: dict[str, Any], key: str, value: Tensor) -> None:
    """A setting of a group that is a tensor stays the same one: a scheduler may hold it."""
    live = group.get(key)
    if isinstance(live, Tensor):
        local(live).copy_(value)
    else:
        group[key] = value.clone()


def _check_optimizer(path: Path, optimizer: torch.optim.Optimizer, model: nn.Module, about: Mapping[str, Any]) -> None:
    kind, groups = about.get("kind"), [saved["params"] for saved in about["groups"]]
    mine = type(optimizer).__name__
    if kind != mine:
        had = "none" if kind is None else kind
        raise RecordingError(f"{path}: this is another optimizer: {mine}, the recording has {had}")
    if (own := _groups(optimizer, model)) != groups:
        sizes = [[len(names) for names in one] for one in (own, groups)]
        raise RecordingError(
            f"{path}: this is another optimizer: its groups have {sizes[0]} parameters, in the recording {sizes[1]}"
            if sizes[0] != sizes[1]
            else f"{path}: this is another optimizer: its groups have other parameters than in the recording"
        )


def _groups(optimizer: torch.optim.Optimizer, model: nn.Module) -> list[list[str]]:
    """The names of each group's parameters. Raises RecordingError for one that is none of the model's."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if id(parameter) not in names:
                shape = tuple(parameter.shape)
                raise RecordingError(f"the optimizer has a parameter of shape {shape} that the model does not have")
    return [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]


def _plain(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return all(_plain(item) for item in value)
    return isinstance(value, (int, float, bool, str, type(None)))


def _like(value: Tensor, parameter: Tensor, *, sharded: bool, on_host: bool) -> Tensor:
    """A piece of optimizer state where and in the form in which the optimizer keeps it."""
    if not sharded:
        return value.clone() if on_host else value.to(local(parameter).device)
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
