package blackbox;

import org.apache.spark.QueryContext;
import org.apache.spark.sql.AnalysisException;
import org.apache.spark.unsafe.Platform;
import scala.Option;

/** Errors of the user's request, raised as AnalysisException like in the Python engine. */
final class Errors {
    private Errors() {
    }

    /** Throw an AnalysisException. The return type lets callers write `throw Errors.analysis(...)`. */
    static RuntimeException analysis(String text) {
        Option none = Option.apply(null);
        scala.collection.immutable.Map empty = scala.collection.immutable.Map$.MODULE$.empty();
        Platform.throwException(new AnalysisException(text, none, none, none, none, empty, new QueryContext[0]));
        return null;
    }
}
