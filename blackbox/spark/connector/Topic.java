package blackbox.connector;

import java.util.Arrays;

import org.apache.spark.unsafe.types.UTF8String;

/** A topic and its parts, each made once for all blocks of a partition. */
final class Topic {
    final byte[] bytes;
    final UTF8String topic;
    final UTF8String symbol;
    /** Null: the topic has no dot. */
    final UTF8String type;
    final long hash;
    /** Whether the filters let messages of it through. */
    boolean wanted = true;

    Topic(byte[] bytes, long hash) {
        this.bytes = bytes;
        this.hash = hash;
        int dot = bytes.length - 1;
        while (dot >= 0 && bytes[dot] != '.') {
            dot--;
        }
        this.topic = UTF8String.fromBytes(bytes);
        // Arrays of their own: Spark copies what is only a part of one, at every row.
        this.symbol = dot < 0 ? topic : UTF8String.fromBytes((byte[]) Arrays.copyOf(bytes, dot));
        this.type = dot < 0 ? null : UTF8String.fromBytes((byte[]) Arrays.copyOfRange(bytes, dot + 1, bytes.length));
    }
}
