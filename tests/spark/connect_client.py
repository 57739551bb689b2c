"""The Spark Connect client that the tests run: print facts about its session as JSON, and draw a recording's page."""

from __future__ import annotations

import json
import sys
import warnings
from pathlib import Path
from typing import Any

import blackbox.analysis.spark
from blackbox import ConfigError
from blackbox.cli.ui.drawing import draw

master, day, page = sys.argv[1:]
warnings.simplefilter("error")
spark = blackbox.analysis.spark.session(master, conf={"spark.ui.enabled": False})  # same value as on the server
try:
    blackbox.analysis.spark.session(master, conf={"spark.executor.memory": "1g"})
    refused = ""
except ConfigError as error:
    refused = str(error)
frame: Any = spark.read.format("blackbox").load(day)
draw(Path(day), Path(page), master=master)
print(json.dumps({"rows": frame.count(), "plan": frame._explain_string(), "refused": refused}))
