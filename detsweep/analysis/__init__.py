"""From captures on disk to frames, the divergence matrix and its report; pandas, no torch."""

from detsweep.analysis.frames import Sweep as Sweep
from detsweep.analysis.loading import load as load
from detsweep.analysis.report import exit_code as exit_code
from detsweep.analysis.report import print_report as print_report
from detsweep.analysis.report import write_report as write_report
