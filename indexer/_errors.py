"""What the index refuses: one base, each error also the nearest builtin, numbers in the message.

All of these are raised before anything was written.
"""


class IndexerError(Exception):
    """Base of every refusal of this package."""


class BlockSizeInvalid(IndexerError, ValueError):
    """A block size that is no positive integer."""

    def __init__(self, block_size: object) -> None:
        super().__init__(f"block_size must be an integer >= 1, got {block_size!r}")


class BlockSizeMismatch(IndexerError, ValueError):
    """A prompt or a dump cut into other blocks than the index it was given to."""

    def __init__(self, got: int, expected: int, what: str = "prompt") -> None:
        super().__init__(f"{what} has blocks of {got} tokens, the index has blocks of {expected}")
        self.got = got
        self.expected = expected


class TokensInvalid(IndexerError, TypeError):
    """Something that cannot be read as token ids: raw bytes, another item type, no sequence."""


class TokenOutOfRange(IndexerError, ValueError):
    """A token id that does not fit in 32 unsigned bits."""

    def __init__(self, token: int, position: int) -> None:
        super().__init__(f"token {token} at position {position} is outside 0..{2**32 - 1}")
        self.token = token
        self.position = position


class MultimodalInvalid(IndexerError, ValueError):
    """Multimodal keys for blocks that do not exist, or keys that do not fit in 64 bits."""


class EngineHashInvalid(IndexerError, ValueError):
    """An engine's name of a block that is neither a 64-bit integer nor a digest."""

    def __init__(self, value: object) -> None:
        super().__init__(
            f"an engine hash is a 64-bit integer or a digest of at least 8 bytes, got {value!r}"
        )


class PackedLengthInvalid(IndexerError, ValueError):
    """Packed block hashes that are no whole number of hashes."""

    def __init__(self, length: int) -> None:
        super().__init__(f"packed block hashes take 8 bytes each, got {length} bytes")


class MutationTypeInvalid(IndexerError, TypeError):
    """Something that is no mutation, or a mutation with a part of another type."""


class MutationInvalid(IndexerError, ValueError):
    """A mutation whose parts do not fit together."""


class BudgetRefused(IndexerError, ValueError):
    """An index with a budget where one is needed that keeps what it was told."""

    def __init__(self, wrapper: str, budget_blocks: int) -> None:
        super().__init__(
            f"{wrapper} must know what the index below it holds, and that one gives up blocks by "
            f"itself (budget_blocks={budget_blocks})"
        )
        self.budget_blocks = budget_blocks


class DumpRefused(IndexerError, ValueError):
    """A dump of another format or hash scheme, a damaged one, or a target that is not empty."""
