package blackbox;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.Path;
import org.apache.spark.unsafe.Platform;

/**
 * A part of a file, of which a window is in native memory at a time.
 *
 * Read and not mapped: it is as fast, for a window stays in the processor's cache while a page that is mapped costs a
 * fault; memory stays flat; and a file that is cut while it is read is an error, where a mapped one ends the process.
 */
final class Bytes {
    private static final int STEP = 1 << 20;

    private final String path;
    /** Null: the file is not local. */
    private final FileChannel file;
    private final FSDataInputStream stream;
    private final long end;
    private byte[] part;
    private ByteBuffer buffer;
    private long address;
    private long start;
    private long stop;

    /** Open a file, to be read up to an offset; `buffer`, a direct one, is the window as long as it suffices. */
    Bytes(String path, long end, ByteBuffer buffer, Configuration settings) throws IOException {
        this.path = path;
        this.end = end;
        if (Files.isLocal(path)) {
            this.file = FileChannel.open(Paths.get(Files.plain(path), new String[0]), StandardOpenOption.READ);
            this.stream = null;
        } else {
            this.file = null;
            this.stream = Files.system(path, settings).open(new Path(path));
        }
        use(buffer);
    }

    /** All bytes of a small file's part. */
    static Bytes read(String path, long start, long end, Configuration settings) throws IOException {
        Bytes bytes = new Bytes(path, end, ByteBuffer.allocateDirect((int) Math.max(1L, end - start)), settings);
        try {
            bytes.need(start, end - start);
        } finally {
            bytes.close();
        }
        return bytes;
    }

    /** Where the byte at an offset of the file is; it must be one of those that were needed last. */
    long at(long offset) {
        return address + (offset - start);
    }

    /** The window, for libraries that want a buffer; the byte at `offset` is at `place(offset)` of it. */
    ByteBuffer buffer() {
        return buffer;
    }

    int place(long offset) {
        return (int) (offset - start);
    }

    /** The bytes of a small file, on the heap. */
    byte[] copy() {
        byte[] copy = new byte[(int) (stop - start)];
        Platform.copyMemory(null, address, copy, Platform.BYTE_ARRAY_OFFSET, copy.length);
        return copy;
    }

    /**
     * Bring `size` bytes from an offset on into memory, and what behind them there is room for. Others may go: what
     * `at` told before is no longer good.
     *
     * Fails with EOFException when the file has become shorter.
     */
    void need(long offset, long size) throws IOException {
        if (offset >= start && offset + size <= stop) {
            return;
        }
        long kept = offset >= start && offset < stop ? stop - offset : 0L;
        ByteBuffer before = buffer;
        long from = at(offset);
        if (size > buffer.capacity()) {
            // Twice as large: else blocks that grow little by little would each have a new one.
            use(ByteBuffer.allocateDirect((int) Math.max(size, Math.min(2L * buffer.capacity(), Layout.MAX_BODY))));
        }
        if (kept > 0) {
            Platform.copyMemory(null, from, null, address, kept);
        }
        // Not before this is the old buffer's memory given back.
        before.position(0);
        start = offset;
        stop = offset + kept;
        fill(Math.min(offset + buffer.capacity(), Math.max(end, offset + size)));
    }

    private void use(ByteBuffer window) {
        buffer = window;
        address = Platform.getDirectBufferAddress(window);
    }

    private void fill(long until) throws IOException {
        while (stop < until) {
            int got;
            if (file != null) {
                buffer.limit((int) (until - start));
                buffer.position((int) (stop - start));
                got = file.read(buffer, stop);
                buffer.clear();
            } else {
                got = fetch((int) Math.min(STEP, until - stop));
            }
            if (got < 0) {
                throw new EOFException(path + ": the file ended at " + stop + ", expected " + until + " bytes or more");
            }
            stop += got;
        }
    }

    private int fetch(int size) throws IOException {
        if (part == null) {
            part = new byte[(int) Math.min(STEP, Math.max(size, buffer.capacity()))];
        }
        int got = stream.read(stop, part, 0, Math.min(size, part.length));
        if (got > 0) {
            Platform.copyMemory(part, Platform.BYTE_ARRAY_OFFSET, null, address + (stop - start), got);
        }
        return got;
    }

    /** Close the file; what is in memory stays. */
    void close() throws IOException {
        if (file != null) {
            file.close();
        } else {
            stream.close();
        }
    }
}
