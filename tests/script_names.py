"""Names that the tests' scripts import at once."""
# ruff: noqa: F401, F403

from blackbox import *
from blackbox.archive.outbox import Outbox
from blackbox.archive.retention import Retention
from blackbox.archive.serve.client import ArchiveClient
from blackbox.block.block import Block
from blackbox.block.position import NOWHERE, Place
from blackbox.errors import *
from blackbox.relay.plain import PlainRelay
from blackbox.replay.controls import Controls
from blackbox.testing import *
