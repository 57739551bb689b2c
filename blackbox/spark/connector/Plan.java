package blackbox;

import java.io.IOException;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;

import org.apache.hadoop.conf.Configuration;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** Which records must be read: what manifests, names and indexes show not to match is passed over. */
final class Plan {
    /** A task's least share, so that little data does not become many tasks. */
    private static final long LEAST_SHARE = 4L << 20;
    /** In memory of a segment whose index does not tell all: its heads are looked at. */
    private static final int WINDOW = 64 << 10;
    private static final Logger LOG = LoggerFactory.getLogger("blackbox");

    private final Options options;
    private final Configuration settings;
    private final Test[] tests;
    private final Facts facts = new Facts();

    final List<Range> ranges = new ArrayList<Range>();
    long bytes;
    long messages;
    long skippedRecords;
    long damagedPlaces;
    long damagedMessages;
    private Range open;
    private Day first;
    /** Index entries that were looked at, and those that may tell of wanted messages. */
    long entries;
    long chosen;

    Plan(Options options, Test[] tests, Configuration settings) throws IOException {
        this.options = options;
        this.tests = tests;
        this.settings = settings;
        List<String> days = Recordings.directories(options, settings);
        for (int i = 0; i < days.size(); i++) {
            day((String) days.get(i));
        }
    }

    /** Whether all that is to be read is on a file system of each machine. */
    boolean isLocal() {
        for (int i = 0; i < ranges.size(); i++) {
            if (!Files.isLocal(((Range) ranges.get(i)).path)) {
                return false;
            }
        }
        return true;
    }

    /** The ranges in parts for tasks, `cores` of which can run at a time. */
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

    private boolean may() {
        for (int i = 0; i < tests.length; i++) {
            if (!tests[i].may(facts)) {
                return false;
            }
        }
        return true;
    }

    private void day(String path) throws IOException {
        Day day = Day.read(path, options.records, options.scaled, settings);
        first = first == null ? day : first;
        day.mustBeLike(first);
        Facts fresh = new Facts();
        facts.of(day);
        reset(fresh);
        facts.set(Facts.SLICE, 0, day.slices - 1);
        if (!may()) {
            return;
        }
        for (int slice = 0; slice < day.slices; slice++) {
            reset(fresh);
            facts.set(Facts.SLICE, slice, slice);
            if (may()) {
                slice(day, slice);
            }
        }
    }

    /** Forget what an entry told. */
    private void reset(Facts fresh) {
        for (int i = Facts.EVENT; i < Facts.NUMBERS; i++) {
            facts.set(i, fresh.low[i], fresh.high[i]);
        }
        facts.keys = -1L;
    }

    private void slice(Day day, int slice) throws IOException {
        String directory = Day.sliceDirectory(day.path, slice);
        String[] names = Files.names(directory, settings);
        List<String> segments = new ArrayList<String>();
        for (int i = 0; i < names.length; i++) {
            if (names[i].matches("[0-9]{6,9}[.]journal")) {
                segments.add(names[i]);
            }
        }
        // The last one first: when it has records, the one before it has all of its own.
        long[] sizes = new long[segments.size()];
        int last = -1;
        for (int i = sizes.length - 1; i >= 0; i--) {
            sizes[i] = Files.size(directory + "/" + segments.get(i), settings);
            if (last < 0 && sizes[i] > Layout.FILE_HEAD) {
                last = i;
            }
        }
        int expected = 0;
        for (int i = 0; i <= last; i++) {
            String name = (String) segments.get(i);
            int number = Integer.parseInt(name.substring(0, name.length() - 8));
            String path = directory + "/" + name;
            if (number > expected) {
                damaged(directory + "/" + Day.padded(expected, 6) + ".journal", (number - expected)
                    + (number > expected + 1 ? " segments" : " segment") + " missing, from this one on", 0, 0, 0);
            }
            expected = number + 1;
            segment(day, slice, number, path, sizes[i], i == last);
        }
    }

    private void segment(Day day, int slice, int number, String path, long known, boolean growing) throws IOException {
        String indexPath = path.substring(0, path.length() - 8) + ".index";
        long indexBytes = Files.size(indexPath, settings);
        Bytes index = indexBytes < Layout.FILE_HEAD ? null : Bytes.read(indexPath, 0, indexBytes, settings);
        // Behind the index: records are written before their entry is.
        long size = growing ? Files.size(path, settings) : known;
        if (size < Layout.FILE_HEAD) {
            if (size >= 0 && !growing) {
                damaged(path, "the segment has no head", 0, size, 0);
            }
            return;
        }
        head(path, slice, number);
        long at = Layout.FILE_HEAD;
        if (index != null && isIndex(index, slice, number)) {
            at = indexed(day, slice, path, index, indexBytes, size);
        }
        if (at < size) {
            scan(day, slice, path, at, size, growing);
        }
        open = null;
    }

    private void head(String path, int slice, int number) throws IOException {
        Bytes head = Bytes.read(path, 0, Layout.FILE_HEAD, settings);
        long at = head.at(0);
        if (Records.u32(at + 60) != Xxh3.checksum(at, Layout.FILE_HEAD - 4)) {
            damaged(path, "the checksum of the segment's head did not match", 0, Layout.FILE_HEAD, 0);
        } else if (!names(at, Layout.SEGMENT_MAGIC, slice, number)) {
            throw Refused.of(Files.shown(path) + ": the head was another one, expected that of segment " + number
                + " of slice " + slice + " in format " + Layout.FORMAT);
        }
    }

    private static boolean names(long head, long magic, int slice, int number) {
        return Records.i64(head) == magic && Records.u16(head + 8) == Layout.FORMAT
            && Records.u16(head + 10) == slice && Records.u32(head + 12) == number;
    }

    private static boolean isIndex(Bytes index, int slice, int number) {
        long at = index.at(0);
        return names(at, Layout.INDEX_MAGIC, slice, number)
            && Records.u32(at + 60) == Xxh3.checksum(at, Layout.FILE_HEAD - 4);
    }

    /** Offer what an index tells of, as far as it can be believed; returns where that ends. */
    private long indexed(Day day, int slice, String path, Bytes index, long indexBytes, long size) throws IOException {
        long at = Layout.FILE_HEAD;
        long cut = 0;
        long lost = 0;
        for (long place = Layout.FILE_HEAD; place + Layout.ENTRY <= indexBytes; place += Layout.ENTRY) {
            long entry = index.at(place);
            long start = Records.i64(entry + Layout.ENTRY_START);
            long stop = Records.i64(entry + Layout.ENTRY_STOP);
            long told = Records.u32(entry + Layout.ENTRY_CHECKSUM);
            if (told != Xxh3.checksum(entry, Layout.ENTRY - 4) || start < at || stop <= start
                    || Records.i64(entry + Layout.ENTRY_RECORDS) <= 0) {
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
                // What is left of it is read; how much that is will be seen then.
                cut = stop;
                stop = size;
            }
            facts.ofEntry(entry);
            offer(day, slice, path, start, stop, Records.i64(entry + Layout.ENTRY_MESSAGES),
                Records.i64(entry + Layout.ENTRY_RECORDS));
            at = stop;
        }
        if (cut > 0) {
            damaged(path, Damage.CUT, size, cut - size, lost);
        }
        return at;
    }

    /** Take a run of records in, or pass it over. `facts` tell of them. */
    private void offer(Day day, int slice, String path, long start, long stop, long told, long records) {
        entries++;
        if (!may()) {
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
        open.messages += told;
        bytes += stop - start;
        messages += told;
    }

    /**
     * Look for records that the index does not tell of; bytes that are none are damage.
     *
     * At the end of a segment that grows they may be a record that is being written, and are left out.
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

    /** Offer the records from an offset on, in runs; returns where no whole one begins. */
    private long walk(Day day, int slice, String path, Bytes heads, long from, long stop) throws IOException {
        long at = from;
        while (Records.isAt(heads, at, stop)) {
            long start = at;
            long told = 0;
            long records = 0;
            reset(new Facts());
            facts.ofRecord(heads.at(at));
            while (at - start < Layout.ENTRY_SPAN && Records.isAt(heads, at, stop)) {
                long record = heads.at(at);
                told += Records.messages(record);
                records++;
                at += Records.size(record);
            }
            if (records > 1) {
                reset(new Facts());
            }
            offer(day, slice, path, start, at, told, records);
        }
        return at;
    }

    private void damaged(String path, String what, long offset, long size, long lost) throws IOException {
        String text = Damage.text(path, what, offset, size, lost);
        if (!options.skip) {
            throw Refused.of(text + Damage.MORE);
        }
        LOG.warn(text);
        damagedPlaces++;
        damagedMessages += lost;
    }
}
