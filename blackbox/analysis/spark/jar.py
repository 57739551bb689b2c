"""The connector's jar: the Java sources in `connector/`, compiled once by the Janino in Spark's own jars.

A session with this jar reads the format `blackbox` in Java, because Spark looks for a class `blackbox.DefaultSource`
before a Python source. `blackbox.analysis.spark.session` adds the jar to the session, and Spark sends it to the
executors.

`make dist` puts the jar for one version of Spark into the wheel, next to the sources. For another version, or from a
clone, the jar is compiled where it is used, without a JDK. This takes two seconds, once for each version of Spark.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from blackbox.analysis.spark.java import find_java
from blackbox.errors import ConfigError
from blackbox.user_cache import draft_in, user_cache

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SOURCES: Final = Path(__file__).with_name("connector")
_COMPILE: Final = SOURCES / "Compile.java"
_NAME: Final = "blackbox-spark-"
_SENT: Final = "/artifacts/"
"""Part of the path of jars sent by clients of Spark Connect, possibly by another client."""
_LIMIT_S: Final = 120
_NO_TIME: Final = (1980, 1, 1, 0, 0, 0)


def connector_jar(java_home: Path | None = None, cache: Path | None = None) -> Path:
    """Return the path of the connector's jar, for `spark.jars`. Compile it into `cache` if it is missing.

    The name of a jar has a digest of its sources and of Spark's version. Several processes may call this at the same
    time.

    Args:
        java_home: the Java that compiles. Default: as found by `find_java`.
        cache: directory of the jar. Default: this package if it has the jar, else `blackbox` in `XDG_CACHE_HOME` or in
            `~/.cache`.

    Raises ConfigError if there is no Java, compiling fails, or the cache cannot be written; ImportError if pyspark is
    not installed.
    """
    spark = _spark()
    sources = sorted(path for path in SOURCES.glob("*.java") if path != _COMPILE)
    name = f"{_NAME}{_digest([*sources, _COMPILE], spark.name)}.jar"
    packed = SOURCES / name
    if cache is None and packed.exists():
        return packed
    cache = cache or user_cache()
    jar = cache / name
    if jar.exists():
        return jar
    with draft_in(cache, "connector-", "the connector for Spark could not be made") as draft:
        java = (java_home or find_java()) / "bin" / "java"
        _compile(str(java), spark.parent, sources, draft / "classes")
        _pack(draft / "classes", draft / jar.name)
        (draft / jar.name).replace(jar)
    return jar


def install(spark: SparkSession) -> None:
    """Add the connector to a running session, unless it has it.

    It is sent to a Spark Connect server that does not have it (`--jars`), for this session only.

    Raises the errors of `connector_jar`, and ConfigError if a server rejects it or runs another version of Spark.
    """
    there = [row[0] for row in spark.sql("LIST JARS").collect()]
    if not hasattr(spark, "_jsparkSession"):
        if not any(f"/{_NAME}" in path and _SENT not in path for path in there):
            _send(spark)
        return
    jar = connector_jar()
    if not any(path.endswith(f"/{jar.name}") for path in there):
        path = str(jar).replace("\\", "\\\\").replace("'", "\\'")
        spark.sql(f"ADD JAR '{path}'")
        _for_all_threads(spark, jar)


def _send(spark: SparkSession) -> None:
    import pyspark
    from pyspark.errors import PySparkException

    if spark.version != pyspark.__version__:
        raise ConfigError(f"the server's Spark was {spark.version}, expected {pyspark.__version__} as it is here")
    try:
        spark.addArtifact(str(connector_jar()))
    except PySparkException as error:
        raise ConfigError(f"the server rejected the connector for Spark: {error}") from error


def _for_all_threads(spark: SparkSession, jar: Path) -> None:
    """Add the jar for all threads: `ADD JAR` changes only this thread's class loader, and others use its parent."""
    from py4j.java_gateway import is_instance_of

    context: Any = spark.sparkContext
    loader = cast(Any, spark)._jsparkSession.sharedState().jarClassLoader().getParent()
    if is_instance_of(context._gateway, loader, "org.apache.spark.util.MutableURLClassLoader"):
        loader.addURL(context._jvm.java.io.File(str(jar)).toURI().toURL())


def _spark() -> Path:
    """Return Spark's SQL jar, which has the version in its name. The other jars are next to it."""
    import pyspark

    home = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent)
    found = sorted((home / "jars").glob("spark-sql_*.jar"))
    if not found:
        raise ConfigError(f"{home / 'jars'} had no jars of Spark, expected pyspark with them; is SPARK_HOME right?")
    return found[-1]


def _digest(sources: list[Path], version: str) -> str:
    told = hashlib.sha256(version.encode())
    for path in sources:
        told.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return told.hexdigest()[:16]


def _compile(java: str, jars: Path, sources: list[Path], classes: Path) -> None:
    classes.mkdir()
    command = [java, "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-cp", f"{jars}/*"]
    # Janino compiles and runs Compile.java in memory, which compiles the sources to files.
    command += ["org.codehaus.janino.SimpleCompiler", str(_COMPILE), "Compile", str(classes), *map(str, sources)]
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=_LIMIT_S)
    except subprocess.TimeoutExpired:
        raise ConfigError(f"the connector for Spark was not compiled within {_LIMIT_S} s by {java}") from None
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        why = next((line for line in lines if line.startswith("Caused by")), lines[0] if lines else "no output")
        raise ConfigError(f"the connector for Spark did not compile with {java}: {why}")


def _pack(classes: Path, jar: Path) -> None:
    """Zip the classes. Equal classes give equal bytes."""
    with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as file:
        for path in sorted(classes.rglob("*.class")):
            entry = zipfile.ZipInfo(str(path.relative_to(classes)), _NO_TIME)
            entry.compress_type = zipfile.ZIP_DEFLATED
            file.writestr(entry, path.read_bytes())
