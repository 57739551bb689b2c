package blackbox;

import org.apache.spark.QueryContext;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.unsafe.Platform;
import scala.Option;

/** What a user asked for and cannot have: the error that Spark has for it, as the engine in Python raises it. */
final class Refused {
    private Refused() {
    }

    /** Throws; what it is said to return lets a caller write `throw`. */
    static RuntimeException of(String text) {
        Option none = Option.apply(null);
        scala.collection.immutable.Map empty = scala.collection.immutable.Map$.MODULE$.empty();
        Platform.throwException(new AnalysisException(text, none, none, none, none, empty, new QueryContext[0]));
        return null;
    }
}
