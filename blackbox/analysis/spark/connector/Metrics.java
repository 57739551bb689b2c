package blackbox;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** Counts of a scan, shown in Spark's UI. */
final class Metrics {
    long read;
    /** Stored bytes of the blocks read. */
    long bytes;
    /** Rows returned to Spark. */
    long rows;
    long skipped;
    long damagedPlaces;
    long damagedMessages;

    CustomTaskMetric[] values() {
        return new CustomTaskMetric[] {
            new Value("blocksRead", read),
            new Value("blocksSkipped", skipped),
            new Value("damagedPlaces", damagedPlaces),
            new Value("damagedMessages", damagedMessages)
        };
    }

    static CustomMetric[] all() {
        return new CustomMetric[] {
            new BlocksRead(), new BlocksSkipped(), new DamagedPlaces(), new DamagedMessages()
        };
    }

    /** One figure of one task. */
    static final class Value implements CustomTaskMetric {
        private final String name;
        private final long value;

        Value(String name, long value) {
            this.name = name;
            this.value = value;
        }

        public String name() {
            return name;
        }

        public long value() {
            return value;
        }
    }

    // Spark instantiates these by name, so they are public and have a constructor without arguments.

    /** Blocks that were read. */
    public static final class BlocksRead extends CustomSumMetric {
        public BlocksRead() {
        }

        public String name() {
            return "blocksRead";
        }

        public String description() {
            return "blocks read";
        }
    }

    /** Blocks skipped because the index or their heads ruled them out. */
    public static final class BlocksSkipped extends CustomSumMetric {
        public BlocksSkipped() {
        }

        public String name() {
            return "blocksSkipped";
        }

        public String description() {
            return "blocks passed over";
        }
    }

    /** Unreadable parts of journals. */
    public static final class DamagedPlaces extends CustomSumMetric {
        public DamagedPlaces() {
        }

        public String name() {
            return "damagedPlaces";
        }

        public String description() {
            return "damaged places";
        }
    }

    /** Messages lost in these parts, as far as known. */
    public static final class DamagedMessages extends CustomSumMetric {
        public DamagedMessages() {
        }

        public String name() {
            return "damagedMessages";
        }

        public String description() {
            return "damaged messages";
        }
    }
}
