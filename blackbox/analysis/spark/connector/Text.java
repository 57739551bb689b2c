package blackbox;

import org.apache.spark.unsafe.types.UTF8String;

/** A predicate on the feed's name, the topic, or a part of the topic: equal to a text, or beginning with it. */
final class Text extends BlockPredicate {
    private static final int FEED = 0;
    private static final int TOPIC = 1;
    private static final int SYMBOL = 2;
    private static final int TYPE = 3;

    private final int column;
    private final boolean whole;
    private final byte[] text;
    private transient UTF8String wanted;
    /** The last result of `mayBeThere`, which is the same for all entries of a slice. */
    private transient Day lastDay;
    private transient long lastSlice;
    private transient boolean lastHeld;
    private transient long lastBit;

    private Text(int column, boolean whole, byte[] text) {
        this.column = column;
        this.whole = whole;
        this.text = text;
    }

    static BlockPredicate of(String name, String column, byte[] text) {
        int number = column.equals("feed") ? FEED
            : column.equals("topic") ? TOPIC : column.equals("symbol") ? SYMBOL : column.equals("type") ? TYPE : -1;
        boolean whole = name.equals("=") || name.equals("<=>") || name.equals("IN");
        return number < 0 || !(whole || name.equals("STARTS_WITH")) ? null : new Text(number, whole, text);
    }

    boolean isOfTopics() {
        return column != FEED;
    }

    boolean mayMatch(BlockBounds bounds) {
        if (wanted == null) {
            wanted = UTF8String.fromBytes(text);
        }
        if (column == FEED) {
            return bounds.day == null || fits(UTF8String.fromString(bounds.day.feed));
        }
        if (bounds.topic != null) {
            return fits(column == TOPIC ? bounds.topic : column == SYMBOL ? bounds.symbol : bounds.type);
        }
        return column == TYPE || bounds.day == null || mayBeThere(bounds, bounds.day);
    }

    private boolean fits(UTF8String found) {
        return found != null && (whole ? found.equals(wanted) : found.startsWith(wanted));
    }

    /** Return true if the feed's routing and the keys of the index entry allow such a topic. */
    private boolean mayBeThere(BlockBounds bounds, Day day) {
        long slice = bounds.low[BlockBounds.SLICE];
        if (slice != bounds.high[BlockBounds.SLICE]) {
            return true;
        }
        if (day != lastDay || slice != lastSlice) {
            lastDay = day;
            lastSlice = slice;
            lastHeld = day.mayHold((int) slice, text, whole);
            lastBit = keyBit(day);
        }
        return lastHeld && (bounds.keys & lastBit) != 0;
    }

    /** Return the bit of the key of such topics; all bits when they may have several keys. */
    private long keyBit(Day day) {
        byte[] key;
        if (day.channels > 1 && day.fixesRoot(text, whole)) {
            key = new byte[] {day.channelKey(text)};
        } else if (day.keyBytes > 0 && text.length >= day.keyBytes) {
            key = java.util.Arrays.copyOf(text, day.keyBytes);
        } else {
            return -1L;
        }
        return 1L << (Xxh3.hash(key) & 63L);
    }
}
