package blackbox.connector;

import java.io.EOFException;
import java.io.IOException;

import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/**
 * The blocks of one task, one batch each; small ones are gathered.
 *
 * Each block is looked at as a whole, checksum and all, before a value of it is given out. Memory behind the batch that
 * is being read is given back.
 */
final class Reader implements PartitionReader {
    /** Blocks of fewer wanted rows are gathered. */
    private static final int SMALL = 512;

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
    private long at;
    /** Messages of the range in records with good heads. */
    private long seen;
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
        boolean body = options.skip || record != null || byTopic;
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

    public void close() {
        gathered.close();
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
            long record = bytes.at(at);
            if (!isRecord(record)) {
                long following = Records.next(bytes, at + 1, range.stop);
                following = following < 0 ? range.stop : following;
                damaged(Damage.NO_RECORD, following - at, 0);
                at = following;
                continue;
            }
            long here = at;
            at += Records.size(record);
            seen += Records.messages(record);
            if (take(record, here)) {
                return true;
            }
        }
    }

    private boolean isRecord(long record) throws IOException {
        try {
            return Records.isRecord(record, range.stop - at);
        } catch (InternalError error) {
            throw cut(error);
        }
    }

    /** Whether the record at an offset has rows that are wanted: the block then stands on it. */
    private boolean take(long record, long offset) throws IOException {
        facts.ofRecord(record);
        for (int i = 0; i < tests.length; i++) {
            if (!tests[i].may(facts)) {
                metrics.skipped++;
                return false;
            }
        }
        block.take(record, range.day, range.slice);
        if (needsBody && !takeBody(record, offset)) {
            return false;
        }
        metrics.read++;
        return block.size > 0;
    }

    private boolean takeBody(long record, long offset) throws IOException {
        try {
            String wrong = block.check(bytes, offset, options.checksums);
            if (wrong != null) {
                damaged(wrong, Records.size(record), Records.messages(record), offset);
                return false;
            }
            boolean all = !needsTopics || block.findTopics();
            boolean anyTime = firstTime == Long.MIN_VALUE && lastTime == Long.MAX_VALUE;
            if (!all || !anyTime || this.record != null) {
                int misfits = block.choose(firstTime, lastTime, !all, this.record);
                if (misfits > 0) {
                    damaged("messages of type '" + (char) this.record.kind + "' had another size than "
                        + this.record.bytes + " bytes", Records.size(record), misfits, offset);
                }
            }
        } catch (InternalError error) {
            throw cut(error);
        }
        return true;
    }

    /** What the machine says of a mapped page that is no longer in the file. */
    private Damage cut(InternalError error) {
        Damage damage = Damage.of(range.path, "the file was cut while it was read", at, range.stop - at, 0);
        damage.initCause(error);
        return damage;
    }

    private boolean nextOfRanges() throws IOException {
        while (nextRange < ranges.length) {
            range = ranges[nextRange++];
            at = range.start;
            seen = 0;
            facts.of(range.day);
            facts.set(Facts.SLICE, range.slice, range.slice);
            try {
                bytes = Bytes.of(range.path, range.start, range.stop, settings);
                return true;
            } catch (EOFException error) {
                damaged(error.getMessage(), range.stop - range.start, range.messages);
            }
        }
        range = null;
        return false;
    }

    private void leave() {
        if (range.messages > seen) {
            metrics.damagedMessages += range.messages - seen;
        }
        // No batch is being read now: the one before was done with when this one was asked for.
        bytes.free();
        bytes = null;
        range = null;
    }

    private void damaged(String what, long size, long lost) throws IOException {
        damaged(what, size, lost, at);
    }

    private void damaged(String what, long size, long lost, long offset) throws IOException {
        if (!options.skip) {
            throw Damage.of(range.path, what, offset, size, lost);
        }
        metrics.damagedPlaces++;
        metrics.damagedMessages += lost;
    }
}
