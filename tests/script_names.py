"""Names that scripts of tests use without an import of their own."""
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
