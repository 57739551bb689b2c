package blackbox;

import java.io.IOException;

import org.apache.spark.unsafe.Platform;

/** Finds records, and marks between them, in native memory by their heads. Bodies are not checked here. */
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

    /** Return the size of a record or mark in bytes, padding included. */
    static long size(long record) {
        int head = isMark(record) ? Layout.MARK_HEAD_BYTES : Layout.RECORD_HEAD_BYTES;
        return aligned(head + u32(record + Layout.RECORD_STORED_BYTES));
    }

    private static long aligned(long size) {
        return (size + Layout.RECORD_ALIGNMENT - 1) & -Layout.RECORD_ALIGNMENT;
    }

    /** Return true if a mark instead of a record begins at an address. */
    static boolean isMark(long at) {
        return Platform.getInt(null, at) == Layout.MAGIC_MARK;
    }

    /** Return the number of messages of a record without rows recorded before; 0 for a mark. */
    static long messages(long record) {
        if (isMark(record)) {
            return 0;
        }
        return u32(record + Layout.AT_COUNT) - u32(record + Layout.RECORD_FIRST_ROW);
    }

    /** Return true if a record with a valid head begins at an address and fits into `room` bytes. */
    private static boolean isRecord(long record, long room) {
        if (room < Layout.RECORD_HEAD_BYTES || Platform.getInt(null, record) != Layout.MAGIC_RECORD) {
            return false;
        }
        long recorded = u32(record + Layout.RECORD_CHECKSUM);
        if (recorded != headChecksum(record, Layout.RECORD_HEAD_BYTES)) {
            return false;
        }
        if (!isHeader(record)) {
            return false;
        }
        long stored = u32(record + Layout.RECORD_STORED_BYTES);
        long body = u32(record + Layout.AT_BODY_BYTES);
        long count = u32(record + Layout.AT_COUNT);
        int codec = u8(record + Layout.RECORD_CODEC);
        if (codec > Layout.CODEC_ZSTD || stored > Layout.MAX_BODY_BYTES) {
            return false;
        }
        if (codec == Layout.CODEC_NONE && stored != body || count * Layout.LEAST_ROW_BYTES > body) {
            return false;
        }
        return u32(record + Layout.RECORD_FIRST_ROW) < count && size(record) <= room;
    }

    /** Return true if a mark with a valid head begins at an address and fits into `room` bytes. */
    private static boolean isWholeMark(long mark, long room) {
        long recorded = u32(mark + Layout.RECORD_CHECKSUM);
        return recorded == headChecksum(mark, Layout.MARK_HEAD_BYTES)
            && u32(mark + Layout.RECORD_STORED_BYTES) <= Layout.MAX_BODY_BYTES && size(mark) <= room;
    }

    /** Return the correct checksum of the head of a record or mark. */
    private static long headChecksum(long at, int bytes) {
        return Xxh3.checksum(at + Layout.OFFSET_CHECKED, bytes - Layout.OFFSET_CHECKED);
    }

    /** Return true if the block header of a record is valid and belongs to a data block. */
    private static boolean isHeader(long record) {
        if (Platform.getInt(null, record + Layout.RECORD_BLOCK) != Layout.MAGIC_BLOCK
                || u8(record + Layout.AT_VERSION) != Layout.VERSION) {
            return false;
        }
        long recorded = u32(record + Layout.AT_HEADER_CHECKSUM);
        if (recorded != Xxh3.checksum(record + Layout.RECORD_BLOCK, Layout.CHECKED_BYTES)) {
            return false;
        }
        int flags = u16(record + Layout.AT_FLAGS);
        if ((flags & ~Layout.KNOWN_FLAGS) != 0 || (flags & (Layout.CONTROL | Layout.END | Layout.REFUSED)) != 0) {
            return false;
        }
        if (u8(record + Layout.AT_KEY_RULE) > Layout.MAX_KEY_BYTES + Layout.MAX_CHANNELS) {
            return false;
        }
        long count = u32(record + Layout.AT_COUNT);
        long topics = u32(record + Layout.AT_TOPICS);
        long sequence = i64(record + Layout.AT_SEQUENCE);
        long previous = i64(record + Layout.AT_PREVIOUS);
        long ofKey = i64(record + Layout.AT_KEY_SEQUENCE);
        long sent = i64(record + Layout.AT_TS_OUT);
        long handedOver = i64(record + Layout.AT_TS_IN);
        return topics > 0 && topics <= count
            && sequence <= Layout.MAX_SEQUENCE && 0 <= ofKey && ofKey <= previous && previous <= sequence
            && sent >= 0 && sent <= Layout.MAX_SEQUENCE
            && handedOver >= 0 && handedOver <= Layout.MAX_SEQUENCE
            && i64(record + Layout.AT_EPOCH) > 0
            && u32(record + Layout.AT_BODY_BYTES) <= Layout.MAX_BODY_BYTES;
    }

    /** Return the offset of the next record or mark between two offsets of the file; -1 when there is none. */
    static long next(Bytes bytes, long after, long stop) throws IOException {
        long at = Layout.FILE_HEAD_BYTES + aligned(Math.max(0, after - Layout.FILE_HEAD_BYTES));
        while (at + Layout.MARK_HEAD_BYTES <= stop) {
            if (isAt(bytes, at, stop)) {
                return at;
            }
            at += Layout.RECORD_ALIGNMENT;
        }
        return -1L;
    }

    /** Return true if a record or mark with a valid head begins at an offset and ends by `stop`. Loads its head. */
    static boolean isAt(Bytes bytes, long at, long stop) throws IOException {
        if (stop - at < Layout.MARK_HEAD_BYTES) {
            return false;
        }
        bytes.need(at, Math.min(Layout.RECORD_HEAD_BYTES, stop - at));
        long here = bytes.at(at);
        return isMark(here) ? isWholeMark(here, stop - at) : isRecord(here, stop - at);
    }
}
