"""`launch=slurm`: trials as job arrays, through submitit; what runs is found again by the next command."""

from detsweep.dispatch.slurm.asking import AwayError as AwayError
from detsweep.dispatch.slurm.asking import cancel as cancel
from detsweep.dispatch.slurm.asking import compressed as compressed
from detsweep.dispatch.slurm.earlier import Earlier as Earlier
from detsweep.dispatch.slurm.earlier import under_way as under_way
from detsweep.dispatch.slurm.pool import SlurmPool as SlurmPool
from detsweep.dispatch.slurm.submission import check as check
