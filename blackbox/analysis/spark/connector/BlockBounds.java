package blackbox;

import java.util.Arrays;

import org.apache.spark.unsafe.types.UTF8String;

/** Facts about the messages of a block before its body is read: ranges of its numbers, and possible topics. */
final class BlockBounds {
    static final int DATE = 0;
    static final int SLICE = 1;
    static final int EVENT = 2;
    static final int OUT = 3;
    static final int RECV = 4;
    static final int EPOCH = 5;
    static final int SEQUENCE = 6;
    static final int NUMBERS = 7;

    final long[] low = new long[NUMBERS];
    final long[] high = new long[NUMBERS];
    /** The recorded day; null when unknown. */
    Day day;
    /** The index entry's bit set of keys; all bits when unknown. */
    long keys = -1L;
    /** The only topic of the messages; null if they may have any. */
    UTF8String topic;
    UTF8String symbol;
    /** Null when the topic has no type. */
    UTF8String type;

    BlockBounds() {
        Arrays.fill(low, Long.MIN_VALUE);
        Arrays.fill(high, Long.MAX_VALUE);
    }

    void set(int number, long least, long largest) {
        low[number] = least;
        high[number] = largest;
    }

    void topic(UTF8String topic, UTF8String symbol, UTF8String type) {
        this.topic = topic;
        this.symbol = symbol;
        this.type = type;
    }

    void of(Day day) {
        this.day = day;
        set(DATE, day.date, day.date);
    }

    /** Take the bounds from a record's head. Event times are in the body, so they stay unknown. */
    void ofRecord(long record) {
        long sent = Records.i64(record + Layout.AT_TS_OUT);
        long received = Records.i64(record + Layout.RECORD_TS_RECV);
        long epoch = Records.i64(record + Layout.AT_EPOCH);
        long first = Records.i64(record + Layout.AT_SEQUENCE);
        set(OUT, sent, sent);
        set(RECV, received, received);
        set(EPOCH, epoch, epoch);
        boolean numbered = (Records.u16(record + Layout.AT_FLAGS) & Layout.SEQUENCES) != 0;
        long last = numbered ? Layout.MAX_SEQUENCE : first + Records.u32(record + Layout.AT_COUNT) - 1;
        set(SEQUENCE, first + Records.u32(record + Layout.RECORD_FIRST_ROW), last);
        set(EVENT, Long.MIN_VALUE, Long.MAX_VALUE);
        keys = -1L;
    }

    /** Take the bounds from an index entry. */
    void ofEntry(long entry) {
        pair(OUT, entry + Layout.ENTRY_MIN_TS_OUT);
        pair(RECV, entry + Layout.ENTRY_MIN_TS_RECV);
        pair(EVENT, entry + Layout.ENTRY_MIN_TS_EVENT);
        pair(SEQUENCE, entry + Layout.ENTRY_MIN_SEQUENCE);
        long epoch = Records.i64(entry + Layout.ENTRY_EPOCH);
        set(EPOCH, epoch, epoch);
        keys = Records.i64(entry + Layout.ENTRY_KEYS);
    }

    private void pair(int number, long at) {
        set(number, Records.i64(at), Records.i64(at + 8));
    }
}
