package blackbox;

import java.util.EnumSet;
import java.util.HashMap;
import java.util.Map;
import java.util.Set;

import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.execution.datasources.v2.python.PythonDataSourceV2;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/**
 * Recordings as a table that the engine in Python reads.
 *
 * Each scan has a source of its own: Spark keeps in one what its first scan has planned, filters and all, and gives that
 * to every later query of the same table.
 */
final class PythonEngine implements Table, SupportsRead {
    private static final String NAME = "blackbox";
    /** Tells the source that filters are of its only scan. */
    private static final String OF_ONE_SCAN = "__scan";

    private final StructType schema;

    PythonEngine(StructType schema) {
        this.schema = schema;
    }

    static StructType inferSchema(CaseInsensitiveStringMap given) {
        return source().inferSchema(given);
    }

    private static PythonDataSourceV2 source() {
        PythonDataSourceV2 source = new PythonDataSourceV2();
        source.setShortName(NAME);
        return source;
    }

    public String name() {
        return NAME;
    }

    public StructType schema() {
        return schema;
    }

    public Set capabilities() {
        return EnumSet.of(TableCapability.BATCH_READ, TableCapability.MICRO_BATCH_READ);
    }

    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap given) {
        Map<String, String> told = new HashMap<String, String>(given.asCaseSensitiveMap());
        told.put(OF_ONE_SCAN, "true");
        Table table = source().getTable(schema, new Transform[0], told);
        return ((SupportsRead) table).newScanBuilder(new CaseInsensitiveStringMap(told));
    }
}
