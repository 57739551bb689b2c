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
 * Recordings as a table that the Python engine reads.
 *
 * Each scan gets a new source: Spark plans a Python source once, with the filters of its first query, and reuses that
 * plan for every later query of the same table.
 */
final class PythonEngine implements Table, SupportsRead {
    private static final String NAME = "blackbox";
    /** The option that tells the source that it serves one scan, so that it may use the filters. */
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
        Map<String, String> options = new HashMap<String, String>(given.asCaseSensitiveMap());
        options.put(OF_ONE_SCAN, "true");
        Table table = source().getTable(schema, new Transform[0], options);
        return ((SupportsRead) table).newScanBuilder(new CaseInsensitiveStringMap(options));
    }
}
