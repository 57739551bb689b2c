package blackbox;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;

import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The blocks of one task, one batch each; small ones are gathered.
 *
 * Each block is looked at as a whole, checksum and all, before a value of it is given out, its head's values too; without
 * checksums those alone do not need its body.
 */
final class Reader implements PartitionReader {
    /** Blocks of fewer wanted rows are gathered. */
    private static final int SMALL = 512;
    /** Of a file, in memory at a time: some blocks, so that it stays in the processor's cache. */
    private static final int WINDOW = 1 << 20;
    private static final Logger LOG = LoggerFactory.getLogger("blackbox");

    private final Range[] ranges;
    private final Options options;
    private final Test[] tests;
    private final Configuration settings;
    private final MessageType record;
    private final Metrics metrics = new Metrics();

    private final Facts facts = new Facts();
    private final Block block;
    private final BlockColumn[] columns;
    private final ColumnarBatch direct;
    private final Gathered gathered;
    private ColumnarBatch batch;

    private final boolean needsBody;
    private final boolean needsTopics;
    private final boolean byTopic;
    private final long firstTime;
    private final long lastTime;

    private int nextRange;
    private Range range;
    private Bytes bytes;
    private ByteBuffer window = ByteBuffer.allocateDirect(WINDOW);
    private long at;
    /** Messages of the range in records with good heads. */
    private long seen;
    /** Whether what was read has been told. */
    private boolean told;
    /** Rows of the block that wait until those gathered before them are read. */
    private int waiting;

    Reader(Range.Partition part, Options options, Column[] wanted, Test[] tests, Configuration settings) {
        this.ranges = part.ranges;
        this.options = options;
        this.tests = tests;
        this.settings = settings;
        this.record = ranges[0].day.record;
        Test[] ofTopics = ofTopics(tests);
        this.byTopic = ofTopics.length > 0;
        this.block = new Block(new Topics(ofTopics));
        this.columns = new BlockColumn[wanted.length];
        boolean body = options.checksums || options.skip || record != null || byTopic;
        boolean topics = byTopic;
        for (int i = 0; i < wanted.length; i++) {
            columns[i] = BlockColumn.of(wanted[i], block);
            body |= !wanted[i].isOfHead();
            topics |= wanted[i].isOfTopic();
        }
        long[] bounds = {Long.MIN_VALUE, Long.MAX_VALUE};
        for (int i = 0; i < tests.length; i++) {
            tests[i].bound(Facts.EVENT, bounds);
        }
        this.firstTime = bounds[0];
        this.lastTime = bounds[1];
        this.needsBody = body || firstTime != Long.MIN_VALUE || lastTime != Long.MAX_VALUE;
        this.needsTopics = topics;
        this.direct = new ColumnarBatch((ColumnVector[]) columns);
        this.gathered = new Gathered(columns);
    }

    private static Test[] ofTopics(Test[] tests) {
        int count = 0;
        Test[] found = new Test[tests.length];
        for (int i = 0; i < tests.length; i++) {
            if (tests[i].isOfTopics()) {
                found[count++] = tests[i];
            }
        }
        return (Test[]) java.util.Arrays.copyOf(found, count);
    }

    public boolean next() throws IOException {
        if (batch != null && batch != direct) {
            gathered.reset();
        }
        batch = null;
        if (waiting > 0) {
            return give(waiting);
        }
        while (gathered.size < Gathered.ROOM - SMALL && nextBlock()) {
            if (block.size < SMALL && columns.length > 0) {
                gathered.add(block.size);
            } else if (gathered.size == 0) {
                return give(block.size);
            } else {
                waiting = block.size;
                break;
            }
        }
        if (gathered.size == 0) {
            return false;
        }
        batch = gathered.take();
        return true;
    }

    private boolean give(int rows) {
        waiting = 0;
        direct.setNumRows(rows);
        batch = direct;
        return true;
    }

    public Object get() {
        return batch;
    }

    public void close() throws IOException {
        gathered.close();
        if (range != null) {
            bytes.close();
            range = null;
        }
        if (metrics.damagedPlaces > 0) {
            LOG.warn(Files.shown(ranges[0].day.path) + " slice " + ranges[0].slice + ": skipped "
                + metrics.damagedPlaces + " damaged parts, " + metrics.damagedMessages + " messages");
        }
        if (options.metrics != null && !told) {
            told = true;
            new Told().and("day", Files.shown(ranges[0].day.path)).and("slice", ranges[0].slice)
                .and("blocks", metrics.read).and("bytes", metrics.bytes).and("rows", metrics.rows)
                .and("damaged", metrics.damagedPlaces).and("lost", metrics.damagedMessages)
                .write(options.metrics, "task");
        }
    }

    public CustomTaskMetric[] currentMetricsValues() {
        return metrics.values();
    }

    /** Stand on the next block with wanted rows; false: there is none. */
    private boolean nextBlock() throws IOException {
        while (true) {
            if (range == null && !nextOfRanges()) {
                return false;
            }
            if (at >= range.stop) {
                leave();
                continue;
            }
            if (readOne()) {
                return true;
            }
        }
    }

    /** Read the record that should be here; whether it has rows that are wanted: the block then stands on it. */
    private boolean readOne() throws IOException {
        long here = at;
        try {
            if (!Records.isAt(bytes, here, range.stop)) {
                long following = Records.next(bytes, here + 1, range.stop);
                following = following < 0 ? range.stop : following;
                damaged(Damage.NO_RECORD, here, following - here, 0);
                at = following;
                return false;
            }
            long size = Records.size(bytes.at(here));
            long told = Records.messages(bytes.at(here));
            long stored = Records.u32(bytes.at(here) + Layout.STORED_BYTES);
            boolean wanted = isWanted(bytes.at(here));
            if (wanted && needsBody) {
                bytes.need(here, size);
            }
            seen += told;
            at = here + size;
            return wanted && (!needsBody || takeBody(here, size, told)) && count(stored);
        } catch (EOFException error) {
            at = range.stop;
            damaged("the file was cut while it was read", here, range.stop - here, 0);
            return false;
        }
    }

    private boolean count(long stored) {
        metrics.read++;
        metrics.bytes += stored;
        metrics.rows += block.size;
        return block.size > 0;
    }

    /** Whether a record's head leaves room for wanted rows. */
    private boolean isWanted(long record) {
        facts.ofRecord(record);
        for (int i = 0; i < tests.length; i++) {
            if (!tests[i].may(facts)) {
                metrics.skipped++;
                return false;
            }
        }
        block.take(record, range.day, range.slice);
        return true;
    }

    private boolean takeBody(long offset, long size, long lost) throws IOException {
        String wrong = block.check(bytes, offset, options.checksums);
        if (wrong != null) {
            damaged(wrong, offset, size, lost);
            return false;
        }
        boolean all = !needsTopics || block.findTopics();
        boolean anyTime = firstTime == Long.MIN_VALUE && lastTime == Long.MAX_VALUE;
        if (!all || !anyTime || record != null) {
            int misfits = block.choose(firstTime, lastTime, !all, record);
            if (misfits > 0) {
                damaged("a message of type '" + record.name + "' had " + block.wrongBytes + " bytes, expected "
                    + record.bytes, offset, size, misfits);
            }
        }
        return true;
    }

    private boolean nextOfRanges() throws IOException {
        if (nextRange == ranges.length) {
            return false;
        }
        Range next = ranges[nextRange++];
        try {
            bytes = new Bytes(next.path, next.stop, window, settings);
        } catch (IOException error) {
            throw Damage.unreadable(next.path, error);
        }
        // Not before this there is a file to close.
        range = next;
        at = range.start;
        seen = 0;
        facts.of(range.day);
        facts.set(Facts.SLICE, range.slice, range.slice);
        return true;
    }

    private void leave() throws IOException {
        if (range.messages > seen) {
            metrics.damagedMessages += range.messages - seen;
        }
        range = null;
        window = bytes.buffer();
        bytes.close();
    }

    private void damaged(String what, long offset, long size, long lost) throws IOException {
        String text = Damage.text(range.path, what, offset, size, lost);
        if (!options.skip) {
            throw Damage.of(text);
        }
        LOG.warn(text);
        metrics.damagedPlaces++;
        metrics.damagedMessages += lost;
    }
}
