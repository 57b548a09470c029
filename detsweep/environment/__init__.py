"""The environment of a trial's processes, the machine they run on, and how two environments differ."""

from detsweep.environment.child import (
    FOREIGN,
    KEPT_NAMES,
    NODE_VARIABLE,
    NUMERIC_PREFIXES,
    THREAD_VARIABLES,
    ChildEnvironment,
    changes_numerics,
    child_environment,
    isolated,
    kept_out,
    of_torchrun,
    overruled,
    thread_variables,
)
from detsweep.environment.differences import EnvironmentDifference, environment_differences, facts
from detsweep.environment.gpus import gpu_platform, visible_gpus
from detsweep.environment.machine import machine

__all__ = [
    "FOREIGN",
    "KEPT_NAMES",
    "NODE_VARIABLE",
    "NUMERIC_PREFIXES",
    "THREAD_VARIABLES",
    "ChildEnvironment",
    "EnvironmentDifference",
    "changes_numerics",
    "child_environment",
    "environment_differences",
    "facts",
    "gpu_platform",
    "isolated",
    "kept_out",
    "machine",
    "of_torchrun",
    "overruled",
    "thread_variables",
    "visible_gpus",
]
