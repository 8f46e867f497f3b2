"""HTTP/1.1 on h11 and Trio: bounded everywhere, and it notices when a client leaves.

Needs the extra `server` (h11, zstandard).
"""

from kvlanes.engine.http._connection import Handler as Handler
from kvlanes.engine.http._connection import Refusal as Refusal
from kvlanes.engine.http._limits import HttpLimits as HttpLimits
from kvlanes.engine.http._messages import BodiesBusy as BodiesBusy
from kvlanes.engine.http._messages import BodyBroken as BodyBroken
from kvlanes.engine.http._messages import BodyLate as BodyLate
from kvlanes.engine.http._messages import BodyTooLarge as BodyTooLarge
from kvlanes.engine.http._messages import EncodingUnknown as EncodingUnknown
from kvlanes.engine.http._messages import HttpError as HttpError
from kvlanes.engine.http._messages import HttpRequest as HttpRequest
from kvlanes.engine.http._messages import HttpResponse as HttpResponse
from kvlanes.engine.http._messages import Send as Send
from kvlanes.engine.http._messages import plain_refusal as plain_refusal
from kvlanes.engine.http._serve import serve_http as serve_http
