"""Which rank holds which KV-cache blocks: plain synchronous Python, usable without Trio."""

from kvlanes.indexer._identity import Prompt as Prompt
from kvlanes.indexer._identity import sequence_hashes as sequence_hashes
from kvlanes.indexer._mutations import Applied as Applied
from kvlanes.indexer._mutations import Clear as Clear
from kvlanes.indexer._mutations import Lease as Lease
from kvlanes.indexer._mutations import Mutation as Mutation
from kvlanes.indexer._mutations import Rank as Rank
from kvlanes.indexer._mutations import Remove as Remove
from kvlanes.indexer._mutations import Store as Store
from kvlanes.indexer._protocol import Expired as Expired
from kvlanes.indexer._protocol import IndexBackend as IndexBackend
from kvlanes.indexer._protocol import Overlap as Overlap
