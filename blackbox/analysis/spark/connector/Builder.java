package blackbox;

import java.util.ArrayList;
import java.util.List;

import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** Collects the columns and filters that Spark's optimizer pushes down for a query. */
final class Builder implements SupportsPushDownRequiredColumns, SupportsPushDownV2Filters {
    private final Options options;
    private final Column[] all;
    private final SupportsRead streams;
    private final CaseInsensitiveStringMap given;
    private Column[] columns;
    private Predicate[] pushed = new Predicate[0];
    private BlockPredicate[] predicates = new BlockPredicate[0];

    Builder(Options options, Column[] columns, SupportsRead streams, CaseInsensitiveStringMap given) {
        this.options = options;
        this.all = columns;
        this.columns = columns;
        this.streams = streams;
        this.given = given;
    }

    public void pruneColumns(StructType needed) {
        columns = Column.chosen(all, needed);
    }

    /** Return all filters to Spark, which filters the rows; here they only help to skip blocks. */
    public Predicate[] pushPredicates(Predicate[] asked) {
        List<Predicate> used = new ArrayList<Predicate>();
        List<BlockPredicate> found = new ArrayList<BlockPredicate>();
        for (int i = 0; i < asked.length; i++) {
            BlockPredicate predicate = BlockPredicate.of(asked[i]);
            if (predicate != null) {
                used.add(asked[i]);
                found.add(predicate);
            }
        }
        pushed = (Predicate[]) used.toArray(new Predicate[0]);
        predicates = (BlockPredicate[]) found.toArray(new BlockPredicate[0]);
        return asked;
    }

    public Predicate[] pushedPredicates() {
        return pushed;
    }

    public Scan build() {
        return new RecordingScan(options, columns, pushed, predicates, streams, given);
    }
}
