package blackbox.connector;

import java.io.IOException;
import java.util.EnumSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;

/**
 * The format "blackbox.connector": Spark looks for a class DefaultSource in a package of that name, before it asks for
 * data sources in Python. Streams, and what option `engine` is "python" for, go to the engine in Python.
 */
public final class DefaultSource implements TableProvider {
    private static final String PYTHON = "blackbox";

    public DefaultSource() {
    }

    static Configuration settings() {
        return SparkSession.active().sparkContext().hadoopConfiguration();
    }

    public StructType inferSchema(CaseInsensitiveStringMap given) {
        Options options = new Options(given);
        return options.python ? python().inferSchema(given) : Column.schema(columns(options));
    }

    public boolean supportsExternalMetadata() {
        return true;
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        CaseInsensitiveStringMap given = new CaseInsensitiveStringMap((Map<String, String>) properties);
        Options options = new Options(given);
        if (options.python) {
            return python().getTable(schema, partitioning, (Map<String, String>) properties);
        }
        return new Recorded(options, Column.chosen(columns(options), schema));
    }

    /** The engine in Python, under the same name. */
    private static PythonDataSourceV2 python() {
        PythonDataSourceV2 source = new PythonDataSourceV2();
        source.setShortName(PYTHON);
        return source;
    }

    /** All columns; with the message type that is wanted, those that the newest day has. */
    private static Column[] columns(Options options) {
        try {
            Configuration settings = settings();
            List<String> days = Recordings.directories(options, settings);
            if (options.records == null || days.isEmpty()) {
                return Column.all(null);
            }
            String newest = (String) days.get(days.size() - 1);
            return Column.all(Day.read(newest, options.records, options.scaled, settings).record);
        } catch (IOException error) {
            Platform.throwException(error);
            return null;
        }
    }

    /** Recordings as a table. */
    static final class Recorded implements Table, SupportsRead {
        private final Options options;
        private final Column[] columns;

        Recorded(Options options, Column[] columns) {
            this.options = options;
            this.columns = columns;
        }

        public String name() {
            return "blackbox " + String.join(", ", (CharSequence[]) options.paths);
        }

        public StructType schema() {
            return Column.schema(columns);
        }

        public Set capabilities() {
            return EnumSet.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ);
        }

        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
            Options now = new Options(given);
            return new Builder(now, columns, new Streamed(columns), given);
        }
    }

    /** The table of the engine in Python, made when a stream is begun. */
    static final class Streamed implements SupportsRead {
        private final Column[] columns;

        Streamed(Column[] columns) {
            this.columns = columns;
        }

        public String name() {
            return PYTHON;
        }

        public Set capabilities() {
            return EnumSet.of(TableCapability.MICRO_BATCH_READ);
        }

        public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
            Table table = python().getTable(
                Column.schema(columns), new Transform[0], given.asCaseSensitiveMap());
            return ((SupportsRead) table).newScanBuilder(given);
        }
    }
}
