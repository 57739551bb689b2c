package blackbox;

import org.apache.hadoop.conf.Configuration;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.util.SerializableConfiguration;

/** Makes a reader for each task, on the executor. */
final class Factory implements PartitionReaderFactory {
    private final Options options;
    private final Column[] columns;
    private final BlockPredicate[] predicates;
    /** Hadoop's settings; null when all files are local, so that they need not be sent. */
    private final Broadcast settings;

    Factory(Options options, Column[] columns, BlockPredicate[] predicates, Broadcast settings) {
        this.options = options;
        this.columns = columns;
        this.predicates = predicates;
        this.settings = settings;
    }

    public PartitionReader createReader(InputPartition part) {
        throw new UnsupportedOperationException("recordings are read in columns");
    }

    public boolean supportColumnarReads(InputPartition part) {
        return true;
    }

    public PartitionReader createColumnarReader(InputPartition part) {
        Configuration found = settings == null ? null : ((SerializableConfiguration) settings.value()).value();
        return new Reader((Range.Partition) part, options, columns, predicates, found);
    }
}
