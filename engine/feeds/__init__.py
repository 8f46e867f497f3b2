"""Follow what inference engines say about their KV caches. Running needs the extra `zmq`."""

from kvlanes.engine.feeds._errors import ConnectionLost as ConnectionLost
from kvlanes.engine.feeds._errors import FeedError as FeedError
from kvlanes.engine.feeds._errors import FeedsExtraMissing as FeedsExtraMissing
from kvlanes.engine.feeds._errors import ResyncNeeded as ResyncNeeded
from kvlanes.engine.feeds._errors import SourceInvalid as SourceInvalid
from kvlanes.engine.feeds._feed import EventCounts as EventCounts
from kvlanes.engine.feeds._feed import Feed as Feed
from kvlanes.engine.feeds._feed import FeedCounts as FeedCounts
from kvlanes.engine.feeds._feed import FeedState as FeedState
from kvlanes.engine.feeds._frames import Frame as Frame
from kvlanes.engine.feeds._frames import Watermark as Watermark
from kvlanes.engine.feeds._listen import ListenedEvents as ListenedEvents
from kvlanes.engine.feeds._listen import Listener as Listener
from kvlanes.engine.feeds._listen import open_listener as open_listener
from kvlanes.engine.feeds._options import CurveKeys as CurveKeys
from kvlanes.engine.feeds._options import FollowOptions as FollowOptions
from kvlanes.engine.feeds._protocols import EventSink as EventSink
from kvlanes.engine.feeds._protocols import EventSource as EventSource
from kvlanes.engine.feeds._sink import REPLAYS_AT_ONCE as REPLAYS_AT_ONCE
from kvlanes.engine.feeds._sink import LaneSink as LaneSink
from kvlanes.engine.feeds._sink import apply_batch as apply_batch
from kvlanes.engine.feeds._sources import SglangEvents as SglangEvents
from kvlanes.engine.feeds._sources import VllmEvents as VllmEvents
