"""Create a Spark session configured for recordings."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from blackbox.analysis.spark.jar import install
from blackbox.analysis.spark.java import find_java
from blackbox.errors import ConfigError
from blackbox.native.system.cgroup import usable_cpus, usable_memory

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PUSHDOWN: Final = "spark.sql.python.filterPushdown.enabled"
"""Spark's setting for filter pushdown to Python sources, off by default. Without it Spark filters after reading."""
_EVERYWHERE: Final = {
    PUSHDOWN: "true",
    # A task of a Python source costs 9 ms instead of 25.
    "spark.python.unix.domain.socket.enabled": "true",
    # Throughput matters here, not pauses.
    "spark.driver.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.executor.extraJavaOptions": "-XX:+UseParallelGC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Otherwise times in results would depend on the machine.
    "spark.sql.session.timeZone": "UTC",
}
_IN_SESSION: Final = {key: value for key, value in _EVERYWHERE.items() if key.startswith("spark.sql.")}
_REMOTE: Final = "sc://"
_LEAST_MEMORY: Final = 512 << 20
"""Minimum memory with which Spark starts: 450 MiB."""
_MOST_MEMORY: Final = 8 << 30


def session(
    master: str | None = None, name: str = "blackbox", conf: Mapping[str, object] | None = None
) -> SparkSession:
    """Return the Spark session of this process, or create one configured for recordings.

    It gets the Java connector (`blackbox.analysis.spark.jar`). If that fails, a warning gives the reason and the Python
    engine reads recordings. In an existing session, only filter pushdown is switched on and `conf` is set. A new
    session uses a suitable Java of this machine, or the one from PyPI (`blackbox.analysis.spark.java`), and sets the
    environment variables `JAVA_HOME`, `PYSPARK_PYTHON` and, on a local master, `SPARK_LOCAL_IP` if they are missing.

    Args:
        master: such as `local[4]`, `spark://host:7077`, or `sc://host:15002` for a Spark Connect server, which gets
            session settings only. Default: that of `spark-submit` or of `SPARK_REMOTE`, or the local cores that this
            process may use.
        name: the application's name.
        conf: more Spark settings, which override ours.

    Raises ConfigError if there is no Java, or `conf` has a setting that an existing session cannot change; ImportError
    if pyspark is not installed (extra `spark`).
    """
    try:
        from pyspark import SparkConf, SparkContext
        from pyspark.sql import SparkSession
    except ImportError as error:
        raise ImportError(f"this needs pyspark: pip install 'blackbox-md[spark]' ({error})") from error
    own = {key: _text(value) for key, value in (conf or {}).items()}
    if (remote := remote_of(master)) is not None:
        # Without a name: a server has its own, and would warn of each setting that it cannot change.
        return _with_connector(_with(SparkSession.builder.remote(remote).getOrCreate(), {**_IN_SESSION, **own}))
    if SparkContext._active_spark_context is not None:
        return _with_connector(_with(SparkSession.builder.getOrCreate(), {PUSHDOWN: "true", **own}))
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if submitted:
        SparkContext._ensure_initialized()
    elif SparkContext._gateway is None:
        os.environ["JAVA_HOME"] = str(find_java())
    told: dict[str, Any] = dict(SparkConf().getAll()) if submitted else {}
    if master is not None:
        told["spark.master"] = master
    chosen = own.get("spark.master") or told.get("spark.master") or f"local[{usable_cpus()}]"
    settings = {**_EVERYWHERE, **(_local(chosen) if chosen.startswith("local") else {}), "spark.app.name": name}
    settings = {**settings, **told, "spark.master": chosen, **own}
    builder: Any = SparkSession.builder
    return _with_connector(builder.config(map=settings).getOrCreate())


def remote_of(master: str | None) -> str | None:
    """Return the Spark Connect server that `session` would use for this `master`, or None."""
    told = master if master is not None else os.environ.get("SPARK_REMOTE", "")
    return told if told.startswith(_REMOTE) else None


def _with(there: SparkSession, settings: Mapping[str, str]) -> SparkSession:
    from pyspark.errors import AnalysisException

    for key, value in settings.items():
        try:
            there.conf.set(key, value)
        except AnalysisException as error:
            was = there.conf.get(key, None)
            if was != value:
                raise ConfigError(
                    f"conf had {key} = {value}, which an existing session cannot change; it was {was}"
                ) from error
    return there


def _with_connector(there: SparkSession) -> SparkSession:
    """Add the connector to a session, or warn why it cannot be added."""
    try:
        install(there)
    except ConfigError as error:
        warnings.warn(f"the slower Python engine reads recordings: {error}", RuntimeWarning, stacklevel=3)
    return there


def _local(master: str) -> dict[str, str]:
    """Return settings for one machine: listen on loopback only, and shuffle into few partitions instead of 200."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    threads = master.partition("[")[2].partition("]")[0].partition(",")[0]
    cores = int(threads) if threads.isdigit() else usable_cpus()
    memory = usable_memory() // 4
    return {
        "spark.driver.memory": f"{max(_LEAST_MEMORY, min(memory, _MOST_MEMORY)) >> 20}m",
        "spark.sql.shuffle.partitions": str(max(4, 2 * cores)),
    }


def _text(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
