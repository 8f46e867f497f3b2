"""Who serves a request: pure scoring, a deterministic choice, and its explanation."""

from kvlanes.engine.selection._choose import Field as Field
from kvlanes.engine.selection._choose import LoadRows as LoadRows
from kvlanes.engine.selection._choose import LoadState as LoadState
from kvlanes.engine.selection._choose import Query as Query
from kvlanes.engine.selection._choose import Selection as Selection
from kvlanes.engine.selection._choose import select as select
from kvlanes.engine.selection._explanation import Explanation as Explanation
from kvlanes.engine.selection._explanation import Row as Row
from kvlanes.engine.selection._explanation import explain as explain
from kvlanes.engine.selection._held import COMMON as COMMON
from kvlanes.engine.selection._held import Held as Held
from kvlanes.engine.selection._held import TierWeights as TierWeights
from kvlanes.engine.selection._held import Worth as Worth
from kvlanes.engine.selection._weights import Weights as Weights
