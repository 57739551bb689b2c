package blackbox;

import java.io.Serializable;

import org.apache.spark.sql.connector.read.InputPartition;

/** Consecutive records of a segment. */
final class Range implements Serializable {
    final Day day;
    final int slice;
    final String path;
    final long start;
    long stop;
    /** Messages according to the index, or to the heads where it is missing. */
    long messages;

    Range(Day day, int slice, String path, long start) {
        this.day = day;
        this.slice = slice;
        this.path = path;
        this.start = start;
        this.stop = start;
    }

    /** The ranges that one task reads. */
    static final class Partition implements InputPartition {
        final Range[] ranges;

        Partition(Range[] ranges) {
            this.ranges = ranges;
        }
    }
}
