package blackbox;

import java.nio.ByteBuffer;

import com.github.luben.zstd.Zstd;
import net.jpountz.lz4.LZ4Exception;
import net.jpountz.lz4.LZ4Factory;
import org.apache.spark.sql.catalyst.util.DateTimeConstants;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The current block of a reader: the addresses of its columns, and the wanted rows.
 *
 * The column vectors read every value through it, so one object serves all blocks of a partition. No value of a body
 * is used before `check` has passed it.
 */
final class Block {
    Day day;
    int slice;
    long tsOut;
    long tsRecv;
    long epoch;
    /** True if the body has a column of sequence numbers. */
    boolean numbered;
    /** Number of wanted rows. */
    int size;
    /** Length of the first message that `choose` left out because of its length, in bytes. */
    long wrongBytes;

    private long count;
    private long topicCount;
    private long topicBytes;
    private long stride;
    private boolean fixed;
    private boolean nulls;
    private boolean grouped;
    private int flags;
    private final Layout.Columns columns = new Layout.Columns();
    private long firstSequence;
    private long body;
    private long topicIndex;
    private long payloadOffsets;
    private long sequences;
    private long validity;
    private long same;
    private long topicOffsets;
    private long topicText;
    private long payloads;

    private int first;
    /** The wanted rows; used only if `chosen`, else they are all rows from `first` on. */
    private int[] rows = new int[0];
    private boolean chosen;
    /** Addresses of the wanted payloads; filled only if a single message type is wanted. */
    private long[] places = new long[0];
    /** For each topic of the block: its columns, and true if its messages are wanted. */
    private UTF8String[] topics = new UTF8String[0];
    private UTF8String[] symbols = new UTF8String[0];
    private UTF8String[] types = new UTF8String[0];
    private boolean[] wanted = new boolean[0];
    private final Topics known;
    private ByteBuffer unpacked = ByteBuffer.allocateDirect(0);

    Block(Topics known) {
        this.known = known;
    }

    /** Split the topics of the next blocks by this rule. */
    void splitBy(SymbolRule rule) {
        known.splitBy(rule);
    }

    // For the columns: values of a wanted row.

    int row(int i) {
        return chosen ? rows[i] : first + i;
    }

    long tsEvent(int i) {
        return Platform.getLong(null, body + 8L * row(i));
    }

    UTF8String topic(int i) {
        return topics[topicOf(row(i))];
    }

    UTF8String symbol(int i) {
        return symbols[topicOf(row(i))];
    }

    UTF8String type(int i) {
        return types[topicOf(row(i))];
    }

    private int topicOf(int row) {
        return Platform.getInt(null, topicIndex + 4L * row);
    }

    long sequenceOf(int i) {
        int row = row(i);
        return numbered ? Platform.getLong(null, sequences + 8L * row) : firstSequence + row;
    }

    boolean hasValue(int i) {
        int row = row(i);
        return !nulls || (Records.u8(validity + (row >> 3)) >> (row & 7) & 1) != 0;
    }

    long place(int i) {
        return places[i];
    }

    byte[] payload(int i) {
        int row = row(i);
        long start = payloadStart(row);
        int length = (int) (payloadStop(row) - start);
        byte[] copy = new byte[length];
        Platform.copyMemory(null, payloads + start, copy, Platform.BYTE_ARRAY_OFFSET, length);
        return copy;
    }

    static long micros(long nanos) {
        return Math.floorDiv(nanos, DateTimeConstants.NANOS_PER_MICROS);
    }

    private long payloadStart(int row) {
        return fixed ? stride * row : Records.u32(payloadOffsets + 4L * row);
    }

    private long payloadStop(int row) {
        return fixed ? stride * row + stride : Records.u32(payloadOffsets + 4L * row + 4);
    }

    // For the reader.

    /** Move to a record whose head `Records` has passed. All rows from its first one on are wanted. */
    void take(long record, Day day, int slice) {
        this.day = day;
        this.slice = slice;
        tsOut = Records.i64(record + Layout.AT_TS_OUT);
        tsRecv = Records.i64(record + Layout.RECORD_TS_RECV);
        epoch = Records.i64(record + Layout.AT_EPOCH);
        firstSequence = Records.i64(record + Layout.AT_SEQUENCE);
        flags = Records.u16(record + Layout.AT_FLAGS);
        fixed = (flags & Layout.FIXED) != 0;
        numbered = (flags & Layout.SEQUENCES) != 0;
        nulls = (flags & Layout.NULLS) != 0;
        grouped = (flags & Layout.SAME) != 0;
        count = Records.u32(record + Layout.AT_COUNT);
        first = (int) Records.u32(record + Layout.RECORD_FIRST_ROW);
        chosen = false;
        size = (int) count - first;
    }

    /**
     * Decompress the body if needed, and check all of it.
     *
     * Returns the fault, or null if the body may be read.
     */
    String check(Bytes bytes, long offset, boolean checksums) {
        long record = bytes.at(offset);
        int codec = Records.u8(record + Layout.RECORD_CODEC);
        long stored = Records.u32(record + Layout.RECORD_STORED_BYTES);
        long recorded = Records.u32(record + Layout.RECORD_STORED_CHECKSUM);
        long bodyBytes = Records.u32(record + Layout.AT_BODY_BYTES);
        boolean summed = (Records.u16(record + Layout.AT_FLAGS) & Layout.CHECKSUM) != 0;
        if (Records.u16(record + Layout.AT_SLICE) != slice) {
            return "a block came on the line of another slice";
        }
        if (checksums && recorded != Xxh3.checksum(record + Layout.RECORD_HEAD_BYTES, stored)) {
            return "body checksum did not match";
        }
        body = record + Layout.RECORD_HEAD_BYTES;
        if (codec != Layout.CODEC_NONE) {
            long start = bytes.place(offset) + Layout.RECORD_HEAD_BYTES;
            String wrong = unpack(codec, bytes.buffer(), start, stored, bodyBytes);
            if (wrong != null) {
                return wrong;
            }
            body = Platform.getDirectBufferAddress(unpacked);
            long right = Records.u32(record + Layout.AT_BODY_CHECKSUM);
            if (checksums && summed && right != Xxh3.checksum(body, bodyBytes)) {
                return "body checksum did not match";
            }
        } else if (summed && Records.u32(record + Layout.AT_BODY_CHECKSUM) != recorded) {
            return "body checksum did not match";
        }
        return lay(record, bodyBytes);
    }

    private String unpack(int codec, ByteBuffer source, long offset, long stored, long size) {
        if (unpacked.capacity() < size) {
            long room = Math.max(size, Math.min(2L * unpacked.capacity(), Layout.MAX_BODY_BYTES));
            unpacked = ByteBuffer.allocateDirect((int) room);
        }
        long got;
        if (codec == Layout.CODEC_ZSTD) {
            got = Zstd.decompressDirectByteBuffer(unpacked, 0, (int) size, source, (int) offset, (int) stored);
            if (Zstd.isError(got)) {
                return "a body did not unpack: " + Zstd.getErrorName(got);
            }
        } else {
            try {
                got = LZ4Factory.fastestInstance().safeDecompressor()
                    .decompress(source, (int) offset, (int) stored, unpacked, 0, (int) size);
            } catch (LZ4Exception error) {
                return "a body did not unpack: " + error.getMessage();
            }
        }
        return got == size ? null : "a body had " + got + " bytes unpacked, expected " + size;
    }

    /** Find the columns, and check that every index and offset points inside the body. */
    private String lay(long record, long size) {
        topicCount = Records.u32(record + Layout.AT_TOPICS);
        topicBytes = Records.u32(record + Layout.AT_TOPIC_BYTES);
        stride = Records.u32(record + Layout.AT_STRIDE);
        // Bound each by the body first, so that the sums below cannot overflow.
        if (count * Layout.LEAST_ROW_BYTES > size || topicCount * 4 > size || topicBytes > size) {
            return "message, topic or byte counts were impossible";
        }
        if (fixed ? stride * count > size : stride != 0) {
            return "message, topic or byte counts were impossible";
        }
        columns.of(flags, count, topicCount, topicBytes);
        topicIndex = body + columns.topicIndex;
        payloadOffsets = body + columns.payloadOffsets;
        sequences = body + columns.sequences;
        validity = body + columns.validity;
        same = body + columns.same;
        topicOffsets = body + columns.topicOffsets;
        topicText = body + columns.topics;
        payloads = body + columns.payloads;
        long left = size - columns.payloads;
        if (left < 0 || (fixed && left != stride * count)) {
            return "message, topic or byte counts were impossible";
        }
        int last = (int) topicCount - 1;
        int signs = 0;
        for (int i = 0; i < count; i++) {
            int index = Platform.getInt(null, topicIndex + 4L * i);
            signs |= index | (last - index);
        }
        if (signs < 0) {
            return "a topic index was out of range";
        }
        if (!fixed && !ascending(payloadOffsets, count, left)) {
            return "payload offsets were not ascending within the body";
        }
        if (numbered && !areSequences()) {
            return "sequence numbers were not ascending from the header's on";
        }
        if (nulls && !isValidity()) {
            return "a message without a value had a payload, or the validity had bits after the last message";
        }
        if (grouped && !isSame()) {
            return "the rows of a message with several topics did not agree on its first row";
        }
        return layTopics();
    }

    private boolean areSequences() {
        long last = firstSequence - 1;
        boolean good = Platform.getLong(null, sequences) == firstSequence
            && Platform.getLong(null, sequences + 8 * (count - 1)) <= Layout.MAX_SEQUENCE;
        for (long row = 0; row < count; row++) {
            long number = Platform.getLong(null, sequences + 8 * row);
            good &= number > last;
            last = number;
        }
        return good;
    }

    private boolean isValidity() {
        boolean good = (count & 7) == 0 || Records.u8(validity + count / 8) >> (count & 7) == 0;
        for (int row = 0; row < count; row++) {
            if ((Records.u8(validity + (row >> 3)) >> (row & 7) & 1) == 0) {
                good &= payloadStart(row) == payloadStop(row);
            }
        }
        return good;
    }

    private boolean isSame() {
        boolean good = true;
        for (int row = 1; row < count; row++) {
            long step = numbered ? Platform.getLong(null, sequences + 8L * row)
                - Platform.getLong(null, sequences + 8L * (row - 1)) : 1;
            long left = Records.u8(same + row) - step;
            good &= left < 0 || left == Records.u8(same + row - 1);
        }
        return good;
    }

    private String layTopics() {
        if (!ascending(topicOffsets, topicCount, topicBytes)) {
            return "topic offsets were not ascending, or a topic was empty or too long";
        }
        long key = Math.min(day.keyBytes, Records.u32(topicOffsets + 4));
        byte channel = 0;
        for (long i = 0; i < topicCount; i++) {
            long start = Records.u32(topicOffsets + 4 * i);
            long length = Records.u32(topicOffsets + 4 * i + 4) - start;
            if (length == 0 || length > Layout.MAX_TOPIC_BYTES) {
                return "topic offsets were not ascending, or a topic was empty or too long";
            }
            boolean same = length >= key && Platform.getByte(null, topicText + start) != 0;
            for (int k = 0; same && k < key; k++) {
                same = Platform.getByte(null, topicText + start + k) == Platform.getByte(null, topicText + k);
            }
            if (same && day.channels > 1) {
                byte[] topic = new byte[(int) length];
                Platform.copyMemory(null, topicText + start, topic, Platform.BYTE_ARRAY_OFFSET, length);
                channel = i == 0 ? day.channelKey(topic) : channel;
                same = channel == day.channelKey(topic);
            }
            if (!same) {
                return "a topic did not have the block's key, or was reserved";
            }
        }
        return null;
    }

    /** Return true if the int32[many + 1] at an address begins with 0, ends with `last` and never decreases. */
    private static boolean ascending(long at, long many, long last) {
        int before = Platform.getInt(null, at);
        boolean good = before == 0 && Platform.getInt(null, at + 4 * many) == last;
        for (int i = 1; i <= many; i++) {
            int offset = Platform.getInt(null, at + 4L * i);
            good &= before <= offset;
            before = offset;
        }
        return good;
    }

    /** Look up the topics of a checked block. Returns true if all of them are wanted. */
    boolean findTopics() {
        int many = (int) topicCount;
        if (topics.length < many) {
            topics = new UTF8String[2 * many];
            symbols = new UTF8String[2 * many];
            types = new UTF8String[2 * many];
            wanted = new boolean[2 * many];
        }
        boolean all = true;
        long start = 0;
        for (int i = 0; i < many; i++) {
            long stop = Records.u32(topicOffsets + 4L * i + 4);
            int slot = known.slotOf(topicText + start, (int) (stop - start));
            topics[i] = known.topics[slot];
            symbols[i] = known.symbols[slot];
            types[i] = known.types[slot];
            wanted[i] = known.wanted[slot];
            all &= wanted[i];
            start = stop;
        }
        return all;
    }

    /**
     * Choose the rows whose event time is from `from` to `to`, whose topic is wanted (if `byTopic`), and whose message
     * type is `record` (if not null). Returns how many rows of that type were left out because of a wrong length.
     */
    int choose(long from, long to, boolean byTopic, MessageType record) {
        int stop = (int) count;
        if (rows.length < stop) {
            rows = new int[stop];
        }
        if (record != null && places.length < stop) {
            places = new long[stop];
        }
        int many = 0;
        int misfits = 0;
        for (int row = first; row < stop; row++) {
            long time = Platform.getLong(null, body + 8L * row);
            if (time < from || time > to) {
                continue;
            }
            if (byTopic && !wanted[topicOf(row)]) {
                continue;
            }
            if (record != null) {
                long start = payloadStart(row);
                long length = payloadStop(row) - start;
                if (length <= record.typeOffset || Records.u8(payloads + start + record.typeOffset) != record.kind) {
                    continue;
                }
                if (length != record.bytes) {
                    wrongBytes = misfits == 0 ? length : wrongBytes;
                    misfits++;
                    continue;
                }
                places[many] = payloads + start;
            }
            rows[many++] = row;
        }
        chosen = many < size;
        size = many;
        return misfits;
    }
}
