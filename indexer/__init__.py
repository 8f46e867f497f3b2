"""Which rank holds which KV-cache blocks: plain synchronous Python, usable without Trio."""

from kvlanes.indexer._errors import BlockSizeInvalid as BlockSizeInvalid
from kvlanes.indexer._errors import BlockSizeMismatch as BlockSizeMismatch
from kvlanes.indexer._errors import DumpRefused as DumpRefused
from kvlanes.indexer._errors import EngineHashInvalid as EngineHashInvalid
from kvlanes.indexer._errors import IndexerError as IndexerError
from kvlanes.indexer._errors import MultimodalInvalid as MultimodalInvalid
from kvlanes.indexer._errors import MutationInvalid as MutationInvalid
from kvlanes.indexer._errors import PackedLengthInvalid as PackedLengthInvalid
from kvlanes.indexer._errors import TokenOutOfRange as TokenOutOfRange
from kvlanes.indexer._errors import TokensInvalid as TokensInvalid
from kvlanes.indexer._identity import Prompt as Prompt
from kvlanes.indexer._identity import block_hashes as block_hashes
from kvlanes.indexer._identity import engine_hash as engine_hash
from kvlanes.indexer._identity import multimodal_key as multimodal_key
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
