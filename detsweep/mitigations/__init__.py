"""Mitigations: named sets of environment variables and torch switches, the catalogue behind them, how they stack."""

from detsweep.mitigations.effect import EFFECTS as EFFECTS
from detsweep.mitigations.effect import merged as merged
from detsweep.mitigations.presets import Preset as Preset
from detsweep.mitigations.presets import chosen as chosen
from detsweep.mitigations.presets import load_presets as load_presets
from detsweep.mitigations.presets import settings_of_all as settings_of_all
from detsweep.mitigations.required import NotInForceError as NotInForceError
from detsweep.mitigations.required import missing as missing
from detsweep.mitigations.required import require as require
from detsweep.mitigations.stack import PLATFORMS as PLATFORMS
from detsweep.mitigations.stack import Settings as Settings
from detsweep.mitigations.stack import combine as combine
from detsweep.mitigations.stack import redundant as redundant
from detsweep.mitigations.stack import settings_of as settings_of
from detsweep.mitigations.stack import unsupported_reason as unsupported_reason
from detsweep.mitigations.variables import Variable as Variable
from detsweep.mitigations.variables import catalogue as catalogue
