package blackbox;

import java.util.Arrays;

import org.apache.spark.unsafe.types.UTF8String;

/** What is known of some messages before they are looked at: bounds of their numbers, and what their topics may be. */
final class Facts {
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
    /** The day that they are of; null: not known. */
    Day day;
    /** A bit for each key that their topics may have, where the index tells it. */
    long keys = -1L;
    /** The topic of all of them; null: they may have any. */
    UTF8String topic;
    UTF8String symbol;
    /** Null: the topic has none. */
    UTF8String type;

    Facts() {
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

    /** What a record's head tells; its body may hold any times. */
    void ofRecord(long record) {
        long sent = Records.i64(record + Layout.AT_TS_OUT);
        long received = Records.i64(record + Layout.TS_RECV);
        long epoch = Records.i64(record + Layout.AT_EPOCH);
        long first = Records.i64(record + Layout.AT_SEQUENCE);
        set(OUT, sent, sent);
        set(RECV, received, received);
        set(EPOCH, epoch, epoch);
        long behind = first + Records.u32(record + Layout.AT_COUNT);
        set(SEQUENCE, first + Records.u32(record + Layout.FIRST_ROW), behind - 1);
        set(EVENT, Long.MIN_VALUE, Long.MAX_VALUE);
        keys = -1L;
    }

    /** What an entry of an index tells. */
    void ofEntry(long entry) {
        pair(OUT, entry + Layout.ENTRY_OUT);
        pair(RECV, entry + Layout.ENTRY_RECV);
        pair(EVENT, entry + Layout.ENTRY_EVENT);
        pair(SEQUENCE, entry + Layout.ENTRY_SEQUENCE);
        long epoch = Records.i64(entry + Layout.ENTRY_EPOCH);
        set(EPOCH, epoch, epoch);
        keys = Records.i64(entry + Layout.ENTRY_KEYS);
    }

    private void pair(int number, long at) {
        set(number, Records.i64(at), Records.i64(at + 8));
    }
}
