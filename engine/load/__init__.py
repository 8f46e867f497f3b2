"""What runs where: synchronous books that only the owner of a booking moves."""

from kvlanes.engine.load._book import Booking as Booking
from kvlanes.engine.load._book import RankBook as RankBook
from kvlanes.engine.load._book import RunningPrompts as RunningPrompts
from kvlanes.engine.load._hits import TRUSTED_AFTER as TRUSTED_AFTER
from kvlanes.engine.load._hits import HitRecord as HitRecord
from kvlanes.engine.load._reports import LoadReport as LoadReport
from kvlanes.engine.load._reports import LoadReports as LoadReports
from kvlanes.engine.load._reports import TooManySources as TooManySources
