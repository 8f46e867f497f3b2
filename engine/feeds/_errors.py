"""How a feed says no, and how its parts tell each other that a stream cannot go on as it was."""


class FeedError(Exception):
    """Base of what this package refuses or reports."""


class FeedsExtraMissing(FeedError, ImportError):
    """The libraries that read engine feeds are not installed."""

    def __init__(self, missing: str) -> None:
        super().__init__(f"engine feeds need {missing}: install kvlanes[zmq]")


class SourceInvalid(FeedError, ValueError):
    """A source whose settings are out of range or contradict each other."""


class FrameInvalid(FeedError, ValueError):
    """A message that is no batch: too few frames, or a sequence frame of another length."""


class TokensUnreadable(FeedError, ValueError):
    """Token ids of an event that are neither integers nor pairs of integers of 32 bits."""


class ConnectionLost(FeedError, ConnectionError):
    """The publisher cannot be reached, or the connection to it ended."""


class PublisherRestarted(FeedError):
    """What answers now is another engine process than the one followed until now."""


class ResyncNeeded(FeedError):
    """The index no longer holds what this feed put there (a crash, a foreign reset)."""


class ReplayTruncated(FeedError):
    """A replay stopped without its end marker."""
