from cdc.library.api import decrypt as decrypt
from cdc.library.api import follow as follow
from cdc.library.api import inbox as inbox
from cdc.library.api import spark as spark
from cdc.library.api import table as table
from cdc.library.changes import Change as Change
from cdc.library.changes import Transaction as Transaction
from cdc.library.decrypt import ERASED as ERASED
from cdc.library.decrypt import Decrypt as Decrypt
from cdc.library.follow import Follow as Follow
from cdc.library.inbox.inbox import Inbox as Inbox
from cdc.library.inbox.inbox import Received as Received
from cdc.library.table import Table as Table
from cdc.library.topics import Topics as Topics
from cdc.library.values import UNCHANGED as UNCHANGED
from cdc.model.errors import CdcError as CdcError
from cdc.model.errors import ConfigError as ConfigError
from cdc.model.errors import GapError as GapError
from cdc.model.errors import OperatorError as OperatorError
from cdc.model.errors import RetryableError as RetryableError

__version__: str

__all__ = [
    "ERASED",
    "UNCHANGED",
    "CdcError",
    "Change",
    "ConfigError",
    "Decrypt",
    "Follow",
    "GapError",
    "Inbox",
    "OperatorError",
    "Received",
    "RetryableError",
    "Table",
    "Topics",
    "Transaction",
    "decrypt",
    "follow",
    "inbox",
    "spark",
    "table",
]
