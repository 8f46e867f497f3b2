"""Admission: weighted permits that return exactly once, whatever happens to the caller."""

from kvlanes.admission._errors import AdmissionError as AdmissionError
from kvlanes.admission._errors import AdmissionRefused as AdmissionRefused
from kvlanes.admission._errors import CapacityExhausted as CapacityExhausted
from kvlanes.admission._errors import DeadlinePassed as DeadlinePassed
from kvlanes.admission._errors import GateClosed as GateClosed
from kvlanes.admission._errors import GroupExhausted as GroupExhausted
from kvlanes.admission._errors import PermitEnded as PermitEnded
from kvlanes.admission._errors import QueueFull as QueueFull
from kvlanes.admission._errors import RequestTooLarge as RequestTooLarge
from kvlanes.admission._errors import WaitsForItself as WaitsForItself
from kvlanes.admission._gate import AdmissionGate as AdmissionGate
from kvlanes.admission._permit import Hold as Hold
from kvlanes.admission._permit import Permit as Permit
from kvlanes.admission._statistics import GateStatistics as GateStatistics
from kvlanes.admission._statistics import Presence as Presence
from kvlanes.admission._threads import BlockingRunner as BlockingRunner
from kvlanes.admission._threads import ThreadLimiter as ThreadLimiter
