"""What tests of a program that embeds kvlanes need: gates, virtual threads, cancel everywhere."""

from kvlanes.engine.testing._cancel_everywhere import Victim as Victim
from kvlanes.engine.testing._cancel_everywhere import at_every_step as at_every_step
from kvlanes.engine.testing._cancel_everywhere import cancel_everywhere as cancel_everywhere
from kvlanes.engine.testing._checked import assert_idle as assert_idle
from kvlanes.engine.testing._checked import checked_gate as checked_gate
from kvlanes.engine.testing._checked_engine import assert_engine_idle as assert_engine_idle
from kvlanes.engine.testing._checked_engine import checked_engine as checked_engine
from kvlanes.engine.testing._gates import ThreadGate as ThreadGate
from kvlanes.engine.testing._gates import VirtualThreads as VirtualThreads
from kvlanes.engine.testing._gates import WorkGate as WorkGate
