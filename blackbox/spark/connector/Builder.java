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

/** Takes what Spark's optimizer says of a query: the columns it needs, the filters it has. */
final class Builder implements SupportsPushDownRequiredColumns, SupportsPushDownV2Filters {
    private final Options options;
    private final Column[] all;
    private final SupportsRead streams;
    private final CaseInsensitiveStringMap given;
    private Column[] columns;
    private Predicate[] pushed = new Predicate[0];
    private Test[] tests = new Test[0];

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

    /** All filters are given back: blocks are passed over by them, rows are chosen by Spark. */
    public Predicate[] pushPredicates(Predicate[] asked) {
        List<Predicate> used = new ArrayList<Predicate>();
        List<Test> found = new ArrayList<Test>();
        for (int i = 0; i < asked.length; i++) {
            Test test = Test.of(asked[i]);
            if (test != null) {
                used.add(asked[i]);
                found.add(test);
            }
        }
        pushed = (Predicate[]) used.toArray(new Predicate[0]);
        tests = (Test[]) found.toArray(new Test[0]);
        return asked;
    }

    public Predicate[] pushedPredicates() {
        return pushed;
    }

    public Scan build() {
        return new Scanned(options, columns, pushed, tests, streams, given);
    }
}
