package blackbox;

import org.apache.spark.unsafe.types.UTF8String;

/** A test of a feed's name, a topic, or a part of a topic: what it is, or how it begins. */
final class Text extends Test {
    private static final int FEED = 0;
    private static final int TOPIC = 1;
    private static final int SYMBOL = 2;
    private static final int TYPE = 3;

    private final int column;
    private final boolean whole;
    private final byte[] text;
    private transient UTF8String wanted;
    /** What `mayBeThere` found out last, which the entries of a segment have in common. */
    private transient Day lastDay;
    private transient long lastSlice;
    private transient boolean lastHeld;
    private transient long lastBit;

    private Text(int column, boolean whole, byte[] text) {
        this.column = column;
        this.whole = whole;
        this.text = text;
    }

    static Test of(String name, String column, byte[] text) {
        int number = column.equals("feed") ? FEED
            : column.equals("topic") ? TOPIC : column.equals("symbol") ? SYMBOL : column.equals("type") ? TYPE : -1;
        boolean whole = name.equals("=") || name.equals("<=>") || name.equals("IN");
        return number < 0 || !(whole || name.equals("STARTS_WITH")) ? null : new Text(number, whole, text);
    }

    boolean isOfTopics() {
        return column != FEED;
    }

    boolean may(Facts facts) {
        if (wanted == null) {
            wanted = UTF8String.fromBytes(text);
        }
        if (column == FEED) {
            return facts.day == null || fits(UTF8String.fromString(facts.day.feed));
        }
        if (facts.topic != null) {
            return fits(column == TOPIC ? facts.topic : column == SYMBOL ? facts.symbol : facts.type);
        }
        return column == TYPE || facts.day == null || mayBeThere(facts, facts.day);
    }

    private boolean fits(UTF8String found) {
        return found != null && (whole ? found.equals(wanted) : found.startsWith(wanted));
    }

    /** Whether the feed's slices and the keys that the index tells of leave room for such a topic. */
    private boolean mayBeThere(Facts facts, Day day) {
        long slice = facts.low[Facts.SLICE];
        if (slice != facts.high[Facts.SLICE]) {
            return true;
        }
        if (day != lastDay || slice != lastSlice) {
            lastDay = day;
            lastSlice = slice;
            lastHeld = day.mayHold((int) slice, text, whole);
            lastBit = keyBit(day.keyBytes);
        }
        return lastHeld && (facts.keys & lastBit) != 0;
    }

    /** The bit of the one key that such topics have; all bits when they may have several. */
    private long keyBit(int keyBytes) {
        if (keyBytes == 0 || text.length < keyBytes) {
            return -1L;
        }
        long hash = Xxh3.hash((byte[]) java.util.Arrays.copyOf(text, keyBytes));
        return 1L << (hash & 63L);
    }
}
