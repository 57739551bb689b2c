package blackbox;

import org.apache.hadoop.conf.Configuration;
import org.apache.spark.broadcast.Broadcast;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.util.SerializableConfiguration;

/** Makes the readers, where the tasks run. */
final class Factory implements PartitionReaderFactory {
    private final Options options;
    private final Column[] columns;
    private final Test[] tests;
    /** Of Hadoop's file systems; null: all files are local, and it need not be sent. */
    private final Broadcast settings;

    Factory(Options options, Column[] columns, Test[] tests, Broadcast settings) {
        this.options = options;
        this.columns = columns;
        this.tests = tests;
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
        return new Reader((Range.Partition) part, options, columns, tests, found);
    }
}
