"""Where everything lies on disk: the one room that knows file names, and how a file is written and read whole."""

from detsweep.paths.bundles import ENDINGS, BundlePaths
from detsweep.paths.files import FileError, file_hash, read_json, write_bytes, write_json, write_text
from detsweep.paths.foreign import foreign
from detsweep.paths.recordings import RankRecordingPaths, RecordingPaths
from detsweep.paths.sweeps import CellPaths, FramesPaths, SweepPaths, conf_dir
from detsweep.paths.trials import TrialPaths

__all__ = [
    "ENDINGS",
    "BundlePaths",
    "CellPaths",
    "FileError",
    "FramesPaths",
    "RankRecordingPaths",
    "RecordingPaths",
    "SweepPaths",
    "TrialPaths",
    "conf_dir",
    "file_hash",
    "foreign",
    "read_json",
    "write_bytes",
    "write_json",
    "write_text",
]
