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
 * Reads the blocks of one task: one batch per block; small blocks are collected into one batch.
 *
 * A block is checked as a whole, checksum included, before any of its values is returned. Only with checksums=false
 * are values of the head returned without reading the body.
 */
final class Reader implements PartitionReader {
    /** Blocks of fewer wanted rows are collected in the row buffer. */
    private static final int SMALL = 512;
    /** Bytes of a file in memory at a time: some blocks, small enough for the cache. */
    private static final int WINDOW = 1 << 20;
    private static final Logger LOG = LoggerFactory.getLogger("blackbox");

    private final Range[] ranges;
    private final Options options;
    private final BlockPredicate[] predicates;
    private final Configuration settings;
    private final MessageType record;
    private final Metrics metrics = new Metrics();

    private final BlockBounds bounds = new BlockBounds();
    private final Block block;
    private final BlockColumn[] columns;
    private final ColumnarBatch direct;
    private final RowBuffer buffer;
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
    /** Messages of the range in records with valid heads. */
    private long seen;
    /** True if the file of counts is written. */
    private boolean reported;
    /** Rows of the current block, returned after those in the buffer. */
    private int waiting;

    Reader(Range.Partition part, Options options, Column[] wanted, BlockPredicate[] predicates,
            Configuration settings) {
        this.ranges = part.ranges;
        this.options = options;
        this.predicates = predicates;
        this.settings = settings;
        this.record = ranges[0].day.record;
        BlockPredicate[] ofTopics = ofTopics(predicates);
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
        long[] times = {Long.MIN_VALUE, Long.MAX_VALUE};
        for (int i = 0; i < predicates.length; i++) {
            predicates[i].narrow(BlockBounds.EVENT, times);
        }
        this.firstTime = times[0];
        this.lastTime = times[1];
        this.needsBody = body || firstTime != Long.MIN_VALUE || lastTime != Long.MAX_VALUE;
        this.needsTopics = topics;
        this.direct = new ColumnarBatch((ColumnVector[]) columns);
        this.buffer = new RowBuffer(columns);
    }

    private static BlockPredicate[] ofTopics(BlockPredicate[] predicates) {
        int count = 0;
        BlockPredicate[] found = new BlockPredicate[predicates.length];
        for (int i = 0; i < predicates.length; i++) {
            if (predicates[i].isOfTopics()) {
                found[count++] = predicates[i];
            }
        }
        return (BlockPredicate[]) java.util.Arrays.copyOf(found, count);
    }

    public boolean next() throws IOException {
        if (batch != null && batch != direct) {
            buffer.reset();
        }
        batch = null;
        if (waiting > 0) {
            return give(waiting);
        }
        while (buffer.size < RowBuffer.ROOM - SMALL && nextBlock()) {
            if (block.size < SMALL && columns.length > 0) {
                buffer.add(block.size);
            } else if (buffer.size == 0) {
                return give(block.size);
            } else {
                waiting = block.size;
                break;
            }
        }
        if (buffer.size == 0) {
            return false;
        }
        batch = buffer.take();
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
        buffer.close();
        if (range != null) {
            bytes.close();
            range = null;
        }
        if (metrics.damagedPlaces > 0) {
            LOG.warn(Files.shown(ranges[0].day.path) + " slice " + ranges[0].slice + ": skipped "
                + metrics.damagedPlaces + " damaged parts, " + metrics.damagedMessages + " messages");
        }
        if (options.metrics != null && !reported) {
            reported = true;
            new MetricsFile().and("day", Files.shown(ranges[0].day.path)).and("slice", ranges[0].slice)
                .and("blocks", metrics.read).and("bytes", metrics.bytes).and("rows", metrics.rows)
                .and("damaged", metrics.damagedPlaces).and("lost", metrics.damagedMessages)
                .write(options.metrics, "task");
        }
    }

    public CustomTaskMetric[] currentMetricsValues() {
        return metrics.values();
    }

    /** Move to the next block with wanted rows. Returns false at the end. */
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

    /** Read the record at the current offset. Returns true if it has wanted rows; `block` is then at it. */
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
            if (Records.isMark(bytes.at(here))) {
                at = here + size;
                return false;
            }
            long messages = Records.messages(bytes.at(here));
            long stored = Records.u32(bytes.at(here) + Layout.RECORD_STORED_BYTES);
            boolean wanted = isWanted(bytes.at(here));
            boolean body = needsBody || block.numbered;
            if (wanted && body) {
                bytes.need(here, size);
            }
            seen += messages;
            at = here + size;
            return wanted && (!body || takeBody(here, size, messages)) && count(stored);
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

    /** Return true if a record's head allows wanted rows; `block` is then at it. */
    private boolean isWanted(long record) {
        bounds.ofRecord(record);
        for (int i = 0; i < predicates.length; i++) {
            if (!predicates[i].mayMatch(bounds)) {
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
        // Set last, because `close` closes the file of a range.
        range = next;
        block.splitBy(range.day.symbolRule);
        at = range.start;
        seen = 0;
        bounds.of(range.day);
        bounds.set(BlockBounds.SLICE, range.slice, range.slice);
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
