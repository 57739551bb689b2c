package blackbox;

/** Places and constants of blocks and journals. Written by `make layout` from blackbox/block/form/layout.py. */
final class Layout {
    static final int VERSION = 3;
    static final int MAGIC_BLOCK = 1481589314;
    static final int MAGIC_RECORD = 1128616514;
    static final int MAGIC_MARK = 1263684930;
    static final long MAGIC_SEGMENT = 5498422674328601154L;
    static final long MAGIC_INDEX = 6360294650675151426L;
    static final int CHECKSUM = 1;
    static final int FIXED = 2;
    static final int CONTROL = 4;
    static final int LINE_B = 8;
    static final int END = 16;
    static final int SEQUENCES = 32;
    static final int NULLS = 64;
    static final int NUMBERS = 256;
    static final int SAME = 4096;
    static final int REFUSED = 512;
    static final int KNOWN_FLAGS = 4991;
    static final int HEADER_BYTES = 88;
    static final int CHECKED_BYTES = 84;
    static final long MAX_BODY_BYTES = 67108864L;
    static final long MAX_SEQUENCE = 4611686018427387904L;
    static final int MAX_TOPIC_BYTES = 65535;
    static final int LEAST_ROW_BYTES = 12;
    static final int NONCE_BYTES = 8;
    static final int MAX_KEY_BYTES = 8;
    static final int MAX_CHANNELS = 128;
    static final int OFFSET_CHECKED = 8;
    static final int RECORD_ALIGNMENT = 32;
    static final int ENTRY_SPAN_BYTES = 65536;
    static final int CODEC_NONE = 0;
    static final int CODEC_LZ4 = 1;
    static final int CODEC_ZSTD = 2;
    static final int FILE_HEAD_BYTES = 64;
    static final int FILE_HEAD_MAGIC = 0;
    static final int FILE_HEAD_VERSION = 8;
    static final int FILE_HEAD_SLICE = 10;
    static final int FILE_HEAD_SEGMENT = 12;
    static final int FILE_HEAD_CREATED = 16;
    static final int FILE_HEAD_CHECKSUM = 60;
    static final int RECORD_HEAD_BYTES = 120;
    static final int RECORD_MAGIC = 0;
    static final int RECORD_CHECKSUM = 4;
    static final int RECORD_TS_RECV = 8;
    static final int RECORD_STORED_BYTES = 16;
    static final int RECORD_FIRST_ROW = 20;
    static final int RECORD_CODEC = 24;
    static final int RECORD_STORED_CHECKSUM = 28;
    static final int RECORD_BLOCK = 32;
    static final int MARK_HEAD_BYTES = 96;
    static final int MARK_MAGIC = 0;
    static final int MARK_CHECKSUM = 4;
    static final int MARK_TS = 8;
    static final int MARK_STORED_BYTES = 16;
    static final int MARK_KIND = 20;
    static final int MARK_FLAGS = 22;
    static final int MARK_NAMES = 24;
    static final int MARK_STORED_CHECKSUM = 28;
    static final int MARK_EPOCH = 32;
    static final int MARK_TS_OUT = 40;
    static final int MARK_RECORDS = 48;
    static final int MARK_MESSAGES = 56;
    static final int MARK_MARKS = 64;
    static final int MARK_CHAIN = 72;
    static final int MARK_TS_EVENT = 80;
    static final int MARK_SEQUENCE = 88;
    static final int ENTRY_BYTES = 128;
    static final int ENTRY_START = 0;
    static final int ENTRY_STOP = 8;
    static final int ENTRY_RECORDS = 16;
    static final int ENTRY_MESSAGES = 24;
    static final int ENTRY_MIN_TS_OUT = 32;
    static final int ENTRY_MAX_TS_OUT = 40;
    static final int ENTRY_MIN_TS_RECV = 48;
    static final int ENTRY_MAX_TS_RECV = 56;
    static final int ENTRY_MIN_TS_EVENT = 64;
    static final int ENTRY_MAX_TS_EVENT = 72;
    static final int ENTRY_EPOCH = 80;
    static final int ENTRY_KEYS = 88;
    static final int ENTRY_MIN_SEQUENCE = 96;
    static final int ENTRY_MAX_SEQUENCE = 104;
    static final int ENTRY_MARKS = 112;
    static final int ENTRY_NOTES = 116;
    static final int ENTRY_LATE = 120;
    static final int ENTRY_CHECKSUM = 124;
    static final int AT_MAGIC = 32;
    static final int AT_VERSION = 36;
    static final int AT_KEY_RULE = 37;
    static final int AT_FLAGS = 38;
    static final int AT_SCHEMA = 40;
    static final int AT_SLICE = 42;
    static final int AT_COUNT = 44;
    static final int AT_EPOCH = 48;
    static final int AT_SEQUENCE = 56;
    static final int AT_PREVIOUS = 64;
    static final int AT_KEY_SEQUENCE = 72;
    static final int AT_TS_OUT = 80;
    static final int AT_TS_IN = 88;
    static final int AT_TOPICS = 96;
    static final int AT_TOPIC_BYTES = 100;
    static final int AT_BODY_BYTES = 104;
    static final int AT_STRIDE = 108;
    static final int AT_BODY_CHECKSUM = 112;
    static final int AT_HEADER_CHECKSUM = 116;

    private Layout() {
    }

    /** Starts of the columns of a body, in bytes; `tsEvent` starts at 0. */
    static final class Columns {
        long topicIndex;
        long payloadOffsets;
        long sequences;
        long validity;
        long same;
        long topicOffsets;
        long topicNumbers;
        long topics;
        long payloads;

        void of(int flags, long count, long topicCount, long topicBytes) {
            long topicIndexAt = 8 * count;
            long payloadOffsetsAt = align(topicIndexAt + 4 * count);
            long sequencesAt = (flags & FIXED) != 0 ? payloadOffsetsAt : align(payloadOffsetsAt + 4 * (count + 1));
            long validityAt = (flags & SEQUENCES) != 0 ? sequencesAt + 8 * count : sequencesAt;
            long sameAt = (flags & NULLS) != 0 ? align(validityAt + ((count + 7) >> 3)) : validityAt;
            long topicOffsetsAt = (flags & SAME) != 0 ? align(sameAt + count) : sameAt;
            long topicNumbersAt = align(topicOffsetsAt + 4 * (topicCount + 1));
            long topicsAt = (flags & NUMBERS) != 0 ? align(topicNumbersAt + 4 * topicCount) : topicNumbersAt;
            long payloadsAt = align(topicsAt + topicBytes);
            topicIndex = topicIndexAt;
            payloadOffsets = payloadOffsetsAt;
            sequences = sequencesAt;
            validity = validityAt;
            same = sameAt;
            topicOffsets = topicOffsetsAt;
            topicNumbers = topicNumbersAt;
            topics = topicsAt;
            payloads = payloadsAt;
        }

        private static long align(long offset) {
            return (offset + 7) & -8L;
        }
    }
}
