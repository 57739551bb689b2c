package blackbox;

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
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.Platform;

/**
 * The format "blackbox". Spark looks for a class DefaultSource in a package of that name before it looks for a Python
 * data source. Streams, and queries with engine=python, are passed on to the Python engine of the same name.
 */
public final class DefaultSource implements TableProvider {
    public DefaultSource() {
    }

    static Configuration settings() {
        return SparkSession.active().sparkContext().hadoopConfiguration();
    }

    public StructType inferSchema(CaseInsensitiveStringMap given) {
        Options options = new Options(given);
        return options.python ? PythonEngine.inferSchema(given) : Column.schema(columns(options));
    }

    public boolean supportsExternalMetadata() {
        return true;
    }

    public Table getTable(StructType schema, Transform[] partitioning, Map properties) {
        CaseInsensitiveStringMap given = new CaseInsensitiveStringMap((Map<String, String>) properties);
        Options options = new Options(given);
        if (options.python) {
            return new PythonEngine(schema);
        }
        return new Recorded(options, Column.chosen(columns(options), schema));
    }

    /** Return all columns. The fields of the wanted message type, if there is one, must be the same in all days. */
    private static Column[] columns(Options options) {
        try {
            Configuration settings = settings();
            List<String> days = RecordingPaths.days(options, settings);
            if (options.messageType == null) {
                return Column.all(null);
            }
            Day first = null;
            for (int i = 0; i < days.size(); i++) {
                Day day = Day.read((String) days.get(i), options.messageType, options.prices, settings);
                first = first == null ? day : first;
                day.mustBeLike(first);
            }
            return Column.all(first.record);
        } catch (IOException error) {
            Platform.throwException(error);
            return null;
        }
    }

    /** Recordings as a table that this engine reads. */
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
            return new Builder(now, columns, new PythonEngine(schema()), given);
        }
    }
}
