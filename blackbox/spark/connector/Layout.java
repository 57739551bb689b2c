package blackbox;

/** Offsets and constants of the journal and block formats; see docs/journal-format.md and docs/wire-format.md. */
final class Layout {
    static final int FILE_HEAD = 64;
    static final long SEGMENT_MAGIC = 0x4C4E524A584F4242L;
    static final long INDEX_MAGIC = 0x58444E49584F4242L;
    static final int FORMAT = 2;

    static final int RECORD_MAGIC = 0x43455242;
    static final int MARK_MAGIC = 0x4B524D42;
    static final int MARK_HEAD = 96;
    static final int RECORD_HEAD = 104;
    static final int ALIGNMENT = 32;
    static final int RECORD_CHECKSUM = 4;
    static final int TS_RECV = 8;
    static final int STORED_BYTES = 16;
    static final int FIRST_ROW = 20;
    static final int CODEC = 24;
    static final int STORED_CHECKSUM = 28;
    static final int BLOCK = 32;

    static final int CODEC_NONE = 0;
    static final int CODEC_LZ4 = 1;
    static final int CODEC_ZSTD = 2;

    static final int HEADER = 72;
    static final int BLOCK_MAGIC = 0x584F4242;
    static final int VERSION = 2;
    static final int AT_VERSION = BLOCK + 4;
    static final int AT_KEY_BYTES = BLOCK + 5;
    static final int AT_FLAGS = BLOCK + 6;
    static final int AT_SLICE = BLOCK + 10;
    static final int AT_COUNT = BLOCK + 12;
    static final int AT_EPOCH = BLOCK + 16;
    static final int AT_SEQUENCE = BLOCK + 24;
    static final int AT_TS_OUT = BLOCK + 32;
    static final int AT_TS_IN = BLOCK + 40;
    static final int AT_TOPICS = BLOCK + 48;
    static final int AT_TOPIC_BYTES = BLOCK + 52;
    static final int AT_BODY_BYTES = BLOCK + 56;
    static final int AT_STRIDE = BLOCK + 60;
    static final int AT_BODY_CHECKSUM = BLOCK + 64;
    static final int AT_HEADER_CHECKSUM = BLOCK + 68;

    static final int HAS_CHECKSUM = 1;
    static final int FIXED = 2;
    static final int CONTROL = 4;
    static final int SEQUENCES = 32;
    static final int NULLS = 64;
    static final int NUMBERS = 256;
    static final int KNOWN_FLAGS = 383;

    static final long MAX_BODY = 64L << 20;
    static final long MAX_NUMBER = 1L << 62;
    static final int MAX_KEY = 8;
    static final int MAX_TOPIC = 65535;
    static final int LEAST_ROW = 12;

    static final int ENTRY = 128;
    static final int ENTRY_SPAN = 64 << 10;
    static final int ENTRY_START = 0;
    static final int ENTRY_STOP = 8;
    static final int ENTRY_RECORDS = 16;
    static final int ENTRY_MESSAGES = 24;
    static final int ENTRY_OUT = 32;
    static final int ENTRY_RECV = 48;
    static final int ENTRY_EVENT = 64;
    static final int ENTRY_EPOCH = 80;
    static final int ENTRY_KEYS = 88;
    static final int ENTRY_SEQUENCE = 96;
    static final int ENTRY_CHECKSUM = 124;

    private Layout() {
    }
}
