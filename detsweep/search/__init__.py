"""Searches over sets of mitigations and of settings; imports neither torch nor Hydra."""

from detsweep.search.run import Answer as Answer
from detsweep.search.run import Task as Task
from detsweep.search.run import search as search
from detsweep.search.session import Launch as Launch
from detsweep.search.tasks import contradictions as contradictions
from detsweep.search.tasks import task_of as task_of
