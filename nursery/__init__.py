"""What owns tasks: the lanes, and dispatch with its deadline and drain."""

from kvlanes.nursery._bare_nursery import open_bare_nursery as open_bare_nursery
from kvlanes.nursery._branches import run_branches as run_branches
from kvlanes.nursery._dispatch import Completed as Completed
from kvlanes.nursery._dispatch import DeadlineExpired as DeadlineExpired
from kvlanes.nursery._dispatch import DispatchExpired as DispatchExpired
from kvlanes.nursery._dispatch import Ending as Ending
from kvlanes.nursery._dispatch import Failed as Failed
from kvlanes.nursery._dispatch import WorkCancelled as WorkCancelled
from kvlanes.nursery._dispatch import dispatch as dispatch
from kvlanes.nursery._errors import LaneBusy as LaneBusy
from kvlanes.nursery._errors import LaneClosed as LaneClosed
from kvlanes.nursery._errors import LaneCrashed as LaneCrashed
from kvlanes.nursery._errors import LaneError as LaneError
from kvlanes.nursery._errors import StaleIncarnation as StaleIncarnation
from kvlanes.nursery._incarnations import Incarnation as Incarnation
from kvlanes.nursery._lane import LaneStatistics as LaneStatistics
from kvlanes.nursery._lane_set import LaneSet as LaneSet
from kvlanes.nursery._lane_set import LaneSetStatistics as LaneSetStatistics
from kvlanes.nursery._open_lanes import open_lanes as open_lanes
