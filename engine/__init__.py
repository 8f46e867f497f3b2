"""kvlanes as a program embeds it: open an engine, register workers, route and dispatch requests.

Every name that stands in a signature here can be imported from here.
"""

from kvlanes.admission import AdmissionError as AdmissionError
from kvlanes.admission import AdmissionGate as AdmissionGate
from kvlanes.admission import AdmissionRefused as AdmissionRefused
from kvlanes.admission import CapacityExhausted as CapacityExhausted
from kvlanes.admission import DeadlinePassed as DeadlinePassed
from kvlanes.admission import GateClosed as GateClosed
from kvlanes.admission import GateStatistics as GateStatistics
from kvlanes.admission import GroupExhausted as GroupExhausted
from kvlanes.admission import Hold as Hold
from kvlanes.admission import Permit as Permit
from kvlanes.admission import Presence as Presence
from kvlanes.admission import QueueFull as QueueFull
from kvlanes.admission import RequestTooLarge as RequestTooLarge
from kvlanes.admission import WaitsForItself as WaitsForItself
from kvlanes.engine._config import EngineConfig as EngineConfig
from kvlanes.engine._engine import Engine as Engine
from kvlanes.engine._errors import ConfigError as ConfigError
from kvlanes.engine._errors import EngineClosed as EngineClosed
from kvlanes.engine._errors import EngineError as EngineError
from kvlanes.engine._errors import NoEligibleWorker as NoEligibleWorker
from kvlanes.engine._errors import UnknownWorker as UnknownWorker
from kvlanes.engine._errors import WorkerExists as WorkerExists
from kvlanes.engine._errors import WorkerLost as WorkerLost
from kvlanes.engine._open_engine import open_engine as open_engine
from kvlanes.engine._request import Request as Request
from kvlanes.engine._request import current_request_id as current_request_id
from kvlanes.engine._reservation import Reservation as Reservation
from kvlanes.engine._route import Route as Route
from kvlanes.engine._status import EngineStatistics as EngineStatistics
from kvlanes.engine._status import Health as Health
from kvlanes.engine._status import RankStatistics as RankStatistics
from kvlanes.engine._worker import Worker as Worker
from kvlanes.engine.selection import Explanation as Explanation
from kvlanes.engine.selection import Weights as Weights
from kvlanes.indexer import Applied as Applied
from kvlanes.indexer import BlockSizeMismatch as BlockSizeMismatch
from kvlanes.indexer import Clear as Clear
from kvlanes.indexer import Lease as Lease
from kvlanes.indexer import Mutation as Mutation
from kvlanes.indexer import Prompt as Prompt
from kvlanes.indexer import RadixIndex as RadixIndex
from kvlanes.indexer import Rank as Rank
from kvlanes.indexer import Remove as Remove
from kvlanes.indexer import Store as Store
from kvlanes.nursery import Completed as Completed
from kvlanes.nursery import DeadlineExpired as DeadlineExpired
from kvlanes.nursery import DispatchExpired as DispatchExpired
from kvlanes.nursery import Ending as Ending
from kvlanes.nursery import Failed as Failed
from kvlanes.nursery import LaneSet as LaneSet
from kvlanes.nursery import dispatch as dispatch
from kvlanes.nursery import open_lanes as open_lanes
