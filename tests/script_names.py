"""Names that the tests' scripts import at once."""
# ruff: noqa: F401, F403

from blackbox import *
from blackbox.archive.maintain.retention import Retention
from blackbox.archive.record.outbox import Outbox
from blackbox.archive.serve.client import ArchiveClient
from blackbox.block.form.block import Block
from blackbox.block.position import NOWHERE, Place
from blackbox.errors import *
from blackbox.replay.controls import Controls
from blackbox.services.relay.plain_clients import PlainRelay
from blackbox.testing import *
