package blackbox;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

import com.fasterxml.jackson.databind.JsonNode;
import org.apache.hadoop.conf.Configuration;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Chooses the records to read. Manifests and indexes rule out days, slices and runs of records. */
final class Plan {
    /** Least bytes of a task, so that little data does not become many tasks. */
    private static final long LEAST_SHARE = 4L << 20;
    /** Bytes in memory while heads of records are scanned, where the index is missing or short. */
    private static final int WINDOW = 64 << 10;
    private static final Logger LOG = LoggerFactory.getLogger("blackbox");

    private final Options options;
    private final Configuration settings;
    private final BlockPredicate[] predicates;
    private final BlockBounds bounds = new BlockBounds();

    final List<Range> ranges = new ArrayList<Range>();
    long bytes;
    long messages;
    long skippedRecords;
    long damagedPlaces;
    long damagedMessages;
    private Range open;
    private Day first;
    /** Index entries seen, and those that may hold wanted messages. */
    long entries;
    long chosen;

    Plan(Options options, BlockPredicate[] predicates, Configuration settings) throws IOException {
        this.options = options;
        this.predicates = predicates;
        this.settings = settings;
        List<String> days = RecordingPaths.days(options, settings);
        for (int i = 0; i < days.size(); i++) {
            day((String) days.get(i));
        }
    }

    /** Return true if all chosen files are on a local or mounted file system. */
    boolean isLocal() {
        for (int i = 0; i < ranges.size(); i++) {
            if (!Files.isLocal(((Range) ranges.get(i)).path)) {
                return false;
            }
        }
        return true;
    }

    /** Divide the ranges among tasks, of which `cores` run at a time. */
    Range.Partition[] partitions(int cores) {
        long share = Math.min(options.partitionBytes, Math.max(LEAST_SHARE, bytes / Math.max(1, cores) + 1));
        List<Range.Partition> parts = new ArrayList<Range.Partition>();
        List<Range> part = new ArrayList<Range>();
        long size = 0;
        for (int i = 0; i < ranges.size(); i++) {
            Range range = (Range) ranges.get(i);
            long more = range.stop - range.start;
            if (size > 0 && size + more > share) {
                parts.add(partition(part));
                part.clear();
                size = 0;
            }
            part.add(range);
            size += more;
        }
        if (size > 0) {
            parts.add(partition(part));
        }
        return (Range.Partition[]) parts.toArray(new Range.Partition[0]);
    }

    private static Range.Partition partition(List<Range> part) {
        List<Range> joined = new ArrayList<Range>();
        Range last = null;
        for (int i = 0; i < part.size(); i++) {
            Range range = (Range) part.get(i);
            if (last == null || last.stop != range.start || !last.path.equals(range.path)) {
                last = new Range(range.day, range.slice, range.path, range.start);
                joined.add(last);
            }
            last.stop = range.stop;
            last.messages += range.messages;
        }
        return new Range.Partition((Range[]) joined.toArray(new Range[0]));
    }

    private boolean mayMatch() {
        for (int i = 0; i < predicates.length; i++) {
            if (!predicates[i].mayMatch(bounds)) {
                return false;
            }
        }
        return true;
    }

    private void day(String path) throws IOException {
        Day day = Day.read(path, options.messageType, options.prices, settings);
        first = first == null ? day : first;
        day.mustBeLike(first);
        BlockBounds fresh = new BlockBounds();
        bounds.of(day);
        reset(fresh);
        bounds.set(BlockBounds.SLICE, 0, day.slices - 1);
        if (!mayMatch()) {
            return;
        }
        // First, because a segment may be recorded in between.
        JsonNode closed = Day.closed(path, settings);
        for (int slice = 0; slice < day.slices; slice++) {
            reset(fresh);
            bounds.set(BlockBounds.SLICE, slice, slice);
            if (mayMatch()) {
                JsonNode known = closed == null ? null : Json.of(closed, Integer.toString(slice));
                slice(day, slice, known == null ? 0 : Json.number(known, "segments", 0));
            }
        }
    }

    /** Forget the bounds of the last index entry. */
    private void reset(BlockBounds fresh) {
        for (int i = BlockBounds.EVENT; i < BlockBounds.NUMBERS; i++) {
            bounds.set(i, fresh.low[i], fresh.high[i]);
        }
        bounds.keys = -1L;
    }

    /** Offer the records of a slice. `begun`: number of its segments according to `closed.json`. */
    private void slice(Day day, int slice, int begun) throws IOException {
        String directory = RecordingPaths.slice(day.path, slice);
        if (!Files.mayHaveDirectory(directory)) {
            damaged(directory, "missing: the manifest has such a slice", 0, 0, 0);
            return;
        }
        String[] names = Files.names(directory, settings);
        int[] numbers = RecordingPaths.numbers(names, RecordingPaths.JOURNAL);
        missingEnd(directory, numbers, RecordingPaths.numbers(names, RecordingPaths.INDEX), begun);
        // The newest first: once it has records, the segments before it no longer grow. The index of a cut one is left.
        long[] sizes = new long[numbers.length];
        int last = -1;
        for (int i = sizes.length - 1; i >= 0; i--) {
            String path = RecordingPaths.segment(directory, numbers[i]);
            sizes[i] = Files.size(path, settings);
            if (last < 0 && (sizes[i] > Layout.FILE_HEAD_BYTES
                    || Files.size(RecordingPaths.index(path), settings) > Layout.FILE_HEAD_BYTES)) {
                last = i;
            }
        }
        int expected = 0;
        for (int i = 0; i <= last; i++) {
            int number = numbers[i];
            if (number > expected) {
                damaged(RecordingPaths.segment(directory, expected), (number - expected)
                    + (number > expected + 1 ? " segments" : " segment") + " missing, from this one on", 0, 0, 0);
            }
            expected = number + 1;
            segment(day, slice, number, RecordingPaths.segment(directory, number), sizes[i], i == last);
        }
    }

    /** Report missing segments after the last one. */
    private void missingEnd(String directory, int[] numbers, int[] indexes, int begun) throws IOException {
        int next = numbers.length == 0 ? 0 : numbers[numbers.length - 1] + 1;
        int left = 0;
        while (left < indexes.length && indexes[indexes.length - 1 - left] >= next) {
            left++;
        }
        if (left > 0) {
            damaged(RecordingPaths.segment(directory, indexes[indexes.length - left]),
                "missing: only the indexes of " + left + " segments are left", 0, 0, 0);
        } else if (begun > next) {
            damaged(RecordingPaths.segment(directory, next), "missing: " + begun + " segments had been begun", 0, 0, 0);
        }
    }

    private void segment(Day day, int slice, int number, String path, long known, boolean growing) throws IOException {
        String indexPath = RecordingPaths.index(path);
        long indexBytes = Files.size(indexPath, settings);
        Bytes index = indexBytes < Layout.FILE_HEAD_BYTES ? null : Bytes.read(indexPath, 0, indexBytes, settings);
        // Measured after the index was read: a record is written before its entry.
        long size = growing ? Files.size(path, settings) : known;
        if (size >= Layout.FILE_HEAD_BYTES) {
            head(path, slice, number);
        }
        long at = Layout.FILE_HEAD_BYTES;
        if (size >= 0 && index != null && isIndex(index, slice, number)) {
            at = indexed(day, slice, path, index, indexBytes, size);
        }
        if (at < size) {
            scan(day, slice, path, at, size, growing);
        } else if (size >= 0 && size < Layout.FILE_HEAD_BYTES && !growing) {
            damaged(path, "the segment has no head", 0, size, 0);
        }
        open = null;
    }

    /** Check a segment's head. Bad bytes are damage; a good head of another format, slice or segment is refused. */
    private void head(String path, int slice, int number) throws IOException {
        Bytes head = Bytes.read(path, 0, Layout.FILE_HEAD_BYTES, settings);
        long at = head.at(0);
        if (Records.u32(at + Layout.FILE_HEAD_CHECKSUM) != Xxh3.checksum(at, Layout.FILE_HEAD_CHECKSUM)) {
            damaged(path, "the checksum of the segment's head did not match", 0, Layout.FILE_HEAD_BYTES, 0);
            return;
        }
        if (Records.i64(at) != Layout.MAGIC_SEGMENT) {
            throw Errors.analysis(Files.shown(path) + ": magic was not that of a segment");
        }
        mustBe(path, "version", Records.u16(at + Layout.FILE_HEAD_VERSION), Layout.VERSION);
        mustBe(path, "slice", Records.u16(at + Layout.FILE_HEAD_SLICE), slice);
        mustBe(path, "segment", Records.u32(at + Layout.FILE_HEAD_SEGMENT), number);
    }

    private static void mustBe(String path, String name, long was, long expected) {
        if (was != expected) {
            throw Errors.analysis(Files.shown(path) + ": " + name + " was " + was + ", expected " + expected);
        }
    }

    private static boolean names(long head, long magic, int slice, int number) {
        return Records.i64(head) == magic
            && Records.u16(head + Layout.FILE_HEAD_VERSION) == Layout.VERSION
            && Records.u16(head + Layout.FILE_HEAD_SLICE) == slice
            && Records.u32(head + Layout.FILE_HEAD_SEGMENT) == number;
    }

    private static boolean isIndex(Bytes index, int slice, int number) {
        long at = index.at(0);
        return names(at, Layout.MAGIC_INDEX, slice, number)
            && Records.u32(at + Layout.FILE_HEAD_CHECKSUM) == Xxh3.checksum(at, Layout.FILE_HEAD_CHECKSUM);
    }

    /** Offer the runs of the index up to its first invalid entry. Returns the offset after the last run. */
    private long indexed(Day day, int slice, String path, Bytes index, long indexBytes, long size) throws IOException {
        long at = Layout.FILE_HEAD_BYTES;
        long cut = 0;
        long lost = 0;
        for (long place = Layout.FILE_HEAD_BYTES; place + Layout.ENTRY_BYTES <= indexBytes; place += Layout.ENTRY_BYTES) {
            long entry = index.at(place);
            long start = Records.i64(entry + Layout.ENTRY_START);
            long stop = Records.i64(entry + Layout.ENTRY_STOP);
            long recorded = Records.u32(entry + Layout.ENTRY_CHECKSUM);
            if (recorded != Xxh3.checksum(entry, Layout.ENTRY_CHECKSUM) || start < at || stop <= start
                    || Records.i64(entry + Layout.ENTRY_RECORDS) < 0) {
                break;
            }
            if (start >= size) {
                lost += Records.i64(entry + Layout.ENTRY_MESSAGES);
                cut = stop;
                at = stop;
                continue;
            }
            if (start > at) {
                scan(day, slice, path, at, start, false);
            }
            if (stop > size) {
                // Read the rest of the run; the reader counts what is left.
                cut = stop;
                stop = size;
            }
            bounds.ofEntry(entry);
            offer(day, slice, path, start, stop, Records.i64(entry + Layout.ENTRY_MESSAGES),
                Records.i64(entry + Layout.ENTRY_RECORDS));
            at = stop;
        }
        if (cut > 0) {
            damaged(path, Damage.CUT, size, cut - size, lost);
        }
        return at;
    }

    /** Add a run of records to the plan if `bounds`, which describe it, may match. */
    private void offer(Day day, int slice, String path, long start, long stop, long count, long records) {
        entries++;
        if (!mayMatch()) {
            skippedRecords += records;
            return;
        }
        chosen++;
        if (open == null || open.stop != start || !open.path.equals(path)
                || stop - open.start > Math.min(options.partitionBytes, LEAST_SHARE)) {
            open = new Range(day, slice, path, start);
            ranges.add(open);
        }
        open.stop = stop;
        open.messages += count;
        bytes += stop - start;
        messages += count;
    }

    /**
     * Scan for records that the index does not list. Other bytes are damage, except at the end of a growing segment,
     * where they may be a record that is being written.
     */
    private void scan(Day day, int slice, String path, long from, long stop, boolean growing) throws IOException {
        Bytes heads = new Bytes(path, stop, ByteBuffer.allocateDirect(WINDOW), settings);
        try {
            long at = walk(day, slice, path, heads, from, stop);
            while (at < stop) {
                long following = Records.next(heads, at + 1, stop);
                if (following < 0) {
                    if (!growing) {
                        damaged(path, Damage.NO_RECORD, at, stop - at, 0);
                    }
                    return;
                }
                damaged(path, Damage.NO_RECORD, at, following - at, 0);
                at = walk(day, slice, path, heads, following, stop);
            }
        } finally {
            heads.close();
        }
    }

    /** Offer the records from an offset on, in runs. Returns the offset of the first incomplete or invalid record. */
    private long walk(Day day, int slice, String path, Bytes heads, long from, long stop) throws IOException {
        long at = from;
        while (Records.isAt(heads, at, stop)) {
            long start = at;
            long count = 0;
            long records = 0;
            reset(new BlockBounds());
            if (!Records.isMark(heads.at(at))) {
                bounds.ofRecord(heads.at(at));
            }
            while (at - start < Layout.ENTRY_SPAN_BYTES && Records.isAt(heads, at, stop)) {
                long record = heads.at(at);
                count += Records.messages(record);
                records += Records.isMark(record) ? 0 : 1;
                at += Records.size(record);
            }
            if (records != 1) {
                reset(new BlockBounds());
            }
            offer(day, slice, path, start, at, count, records);
        }
        return at;
    }

    private void damaged(String path, String what, long offset, long size, long lost) throws IOException {
        String text = Damage.text(path, what, offset, size, lost);
        if (!options.skip) {
            throw Errors.analysis(text + Damage.MORE);
        }
        LOG.warn(text);
        damagedPlaces++;
        damagedMessages += lost;
    }
}
