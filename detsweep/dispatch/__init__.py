"""The driver's side of launching trials; imports no torch."""

from detsweep.dispatch.dry_run import dry_run as dry_run
from detsweep.dispatch.loop import run_trials as run_trials
from detsweep.locks import FolderBusyError as FolderBusyError
from detsweep.nodes import ClusterError as ClusterError
