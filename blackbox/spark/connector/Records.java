package blackbox;

import java.io.IOException;

import org.apache.spark.unsafe.Platform;

/** Records in native memory: whether one begins somewhere, and where the next one is. Bodies are not looked at. */
final class Records {
    private Records() {
    }

    static long u32(long at) {
        return Platform.getInt(null, at) & 0xFFFFFFFFL;
    }

    static int u16(long at) {
        return Platform.getShort(null, at) & 0xFFFF;
    }

    static int u8(long at) {
        return Platform.getByte(null, at) & 0xFF;
    }

    static long i64(long at) {
        return Platform.getLong(null, at);
    }

    /** How far it is to the next record. */
    static long size(long record) {
        return (Layout.RECORD_HEAD + u32(record + Layout.STORED_BYTES) + Layout.ALIGNMENT - 1) & -Layout.ALIGNMENT;
    }

    /** Messages of a record, without those that were recorded before. */
    static long messages(long record) {
        return u32(record + Layout.AT_COUNT) - u32(record + Layout.FIRST_ROW);
    }

    /** Whether a good head of a record lies at an address, and all of the record in `room` bytes. */
    private static boolean isRecord(long record, long room) {
        if (room < Layout.RECORD_HEAD || Platform.getInt(null, record) != Layout.RECORD_MAGIC) {
            return false;
        }
        long told = u32(record + Layout.RECORD_CHECKSUM);
        if (told != Xxh3.checksum(record + Layout.TS_RECV, Layout.RECORD_HEAD - Layout.TS_RECV)) {
            return false;
        }
        if (!isHeader(record)) {
            return false;
        }
        long stored = u32(record + Layout.STORED_BYTES);
        long body = u32(record + Layout.AT_BODY_BYTES);
        long count = u32(record + Layout.AT_COUNT);
        int codec = u8(record + Layout.CODEC);
        if (codec > Layout.CODEC_ZSTD || stored > Layout.MAX_BODY || (codec == Layout.CODEC_NONE && stored != body)) {
            return false;
        }
        return count * Layout.LEAST_ROW <= body && u32(record + Layout.FIRST_ROW) < count && size(record) <= room;
    }

    /** Whether the header of a record's block is one of a block of data. */
    private static boolean isHeader(long record) {
        if (Platform.getInt(null, record + Layout.BLOCK) != Layout.BLOCK_MAGIC
                || u8(record + Layout.AT_VERSION) != Layout.VERSION) {
            return false;
        }
        long told = u32(record + Layout.AT_HEADER_CHECKSUM);
        if (told != Xxh3.checksum(record + Layout.BLOCK, Layout.HEADER - 4)) {
            return false;
        }
        int flags = u8(record + Layout.AT_FLAGS);
        if ((flags & ~Layout.KNOWN_FLAGS) != 0 || (flags & Layout.CONTROL) != 0) {
            return false;
        }
        if (u16(record + Layout.AT_RESERVED) != 0) {
            return false;
        }
        long count = u32(record + Layout.AT_COUNT);
        long topics = u32(record + Layout.AT_TOPICS);
        long sequence = i64(record + Layout.AT_SEQUENCE);
        long sent = i64(record + Layout.AT_TS_OUT);
        return topics > 0 && topics <= count
            && sequence >= 0 && sequence <= Layout.MAX_NUMBER
            && sent >= 0 && sent <= Layout.MAX_NUMBER
            && u32(record + Layout.AT_BODY_BYTES) <= Layout.MAX_BODY;
    }

    /** The offset in the file of the next record behind offset `after` and before `stop`; -1: there is none. */
    static long next(Bytes bytes, long after, long stop) throws IOException {
        long step = Layout.ALIGNMENT;
        long at = Layout.FILE_HEAD + ((Math.max(after, Layout.FILE_HEAD) - Layout.FILE_HEAD + step - 1) & -step);
        while (at + Layout.RECORD_HEAD <= stop) {
            if (isAt(bytes, at, stop)) {
                return at;
            }
            at += step;
        }
        return -1L;
    }

    /** Whether a whole record with a good head begins at an offset and ends before `stop`; its head is then there. */
    static boolean isAt(Bytes bytes, long at, long stop) throws IOException {
        if (stop - at < Layout.RECORD_HEAD) {
            return false;
        }
        bytes.need(at, Layout.RECORD_HEAD);
        return isRecord(bytes.at(at), stop - at);
    }
}
