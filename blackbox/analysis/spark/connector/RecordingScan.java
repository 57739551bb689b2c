package blackbox;

import java.io.IOException;
import java.net.SocketTimeoutException;
import java.util.Arrays;
import java.util.OptionalLong;

import org.apache.spark.SparkContext;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.SparkSession;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.Statistics;
import org.apache.spark.sql.connector.read.SupportsReportStatistics;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.util.SerializableConfiguration;

/** One scan of recordings in the state at the time of planning. */
final class RecordingScan implements Scan, Batch, SupportsReportStatistics {
    /** Most starts of a Python process for a stream. */
    private static final int STARTS = 12;

    private final Options options;
    private final Column[] columns;
    private final Predicate[] pushed;
    private final BlockPredicate[] predicates;
    private final SupportsRead streams;
    private final org.apache.spark.sql.util.CaseInsensitiveStringMap given;
    private Plan plan;
    private InputPartition[] parts;

    RecordingScan(Options options, Column[] columns, Predicate[] pushed, BlockPredicate[] predicates,
            SupportsRead streams, org.apache.spark.sql.util.CaseInsensitiveStringMap given) {
        this.options = options;
        this.columns = columns;
        this.pushed = pushed;
        this.predicates = predicates;
        this.streams = streams;
        this.given = given;
    }

    private Plan plan() {
        if (plan == null) {
            try {
                plan = new Plan(options, predicates, DefaultSource.settings());
            } catch (IOException error) {
                Platform.throwException(error);
            }
        }
        return plan;
    }

    public StructType readSchema() {
        return Column.schema(columns);
    }

    public String description() {
        return "blackbox " + Arrays.toString((Object[]) options.paths) + ", PushedFilters: "
            + Arrays.toString((Object[]) pushed) + ", ReadSchema: " + readSchema().catalogString();
    }

    public Batch toBatch() {
        return this;
    }

    /** Delegate to the Python engine, which reads streams. Spark gives its process ten seconds to start: try again. */
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        for (int left = STARTS - 1;; left--) {
            try {
                return streams.newScanBuilder(given).build().toMicroBatchStream(checkpoint);
            } catch (Exception error) {
                if (left == 0 || !(error.getCause() instanceof SocketTimeoutException)) {
                    Platform.throwException(error);
                }
            }
        }
    }

    public InputPartition[] planInputPartitions() {
        if (parts != null) {
            return parts;
        }
        int cores = SparkSession.active().sparkContext().defaultParallelism();
        parts = (InputPartition[]) plan().partitions(cores);
        if (options.metrics != null) {
            try {
                new MetricsFile().and("entries", plan.entries).and("chosen", plan.chosen)
                    .and("partitions", parts.length).and("damaged", plan.damagedPlaces).write(options.metrics, "plan");
            } catch (IOException error) {
                Platform.throwException(error);
            }
        }
        return parts;
    }

    public PartitionReaderFactory createReaderFactory() {
        SparkContext context = SparkSession.active().sparkContext();
        Broadcast settings = plan().isLocal() ? null
            : SerializableConfiguration.broadcast(context, DefaultSource.settings());
        return new Factory(options, columns, predicates, settings);
    }

    public CustomMetric[] supportedCustomMetrics() {
        return Metrics.all();
    }

    public CustomTaskMetric[] reportDriverMetrics() {
        Metrics metrics = new Metrics();
        if (plan != null) {
            metrics.skipped = plan.skippedRecords;
            metrics.damagedPlaces = plan.damagedPlaces;
            metrics.damagedMessages = plan.damagedMessages;
        }
        return metrics.values();
    }

    public Statistics estimateStatistics() {
        final long rows = plan().messages;
        // Spark assumes 100 bytes for a payload, and broadcasts tables that it estimates as small.
        final long bytes = Math.max(hasPayload() ? plan().bytes : 1L, rows * readSchema().defaultSize());
        return new Statistics() {
            public OptionalLong sizeInBytes() {
                return OptionalLong.of(bytes);
            }

            public OptionalLong numRows() {
                return OptionalLong.of(rows);
            }
        };
    }

    private boolean hasPayload() {
        for (int i = 0; i < columns.length; i++) {
            if (columns[i].number == Column.PAYLOAD) {
                return true;
            }
        }
        return false;
    }

    public boolean equals(Object other) {
        return other instanceof RecordingScan && description().equals(((RecordingScan) other).description())
            && given.equals(((RecordingScan) other).given);
    }

    public int hashCode() {
        return description().hashCode();
    }
}
