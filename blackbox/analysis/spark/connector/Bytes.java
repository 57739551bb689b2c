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
 * A window into a file, in native memory.
 *
 * The file is read, not mapped. Reading is as fast, because the window stays in the cache and mapped pages cost faults.
 * Memory stays flat, and a file that is truncated meanwhile is an error instead of the end of the process.
 */
final class Bytes {
    private static final int STEP = 1 << 20;

    private final String path;
    /** Null when the file is not local; `stream` reads it then. */
    private final FileChannel file;
    private final FSDataInputStream stream;
    private final long end;
    private byte[] part;
    private ByteBuffer buffer;
    private long address;
    private long start;
    private long stop;

    /** Open a file to read it up to `end`. The window is `buffer`, a direct one, until a larger one is needed. */
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

    /** Read the bytes from `start` to `end` at once, and close the file. */
    static Bytes read(String path, long start, long end, Configuration settings) throws IOException {
        Bytes bytes = new Bytes(path, end, ByteBuffer.allocateDirect((int) Math.max(1L, end - start)), settings);
        try {
            bytes.need(start, end - start);
        } finally {
            bytes.close();
        }
        return bytes;
    }

    /** Return the address of a byte of the file, which must lie in the range that `need` was last called for. */
    long at(long offset) {
        return address + (offset - start);
    }

    /** The window as a buffer. The byte at `offset` of the file is at `place(offset)` of it. */
    ByteBuffer buffer() {
        return buffer;
    }

    int place(long offset) {
        return (int) (offset - start);
    }

    /** Copy the window to the heap. */
    byte[] copy() {
        byte[] copy = new byte[(int) (stop - start)];
        Platform.copyMemory(null, address, copy, Platform.BYTE_ARRAY_OFFSET, copy.length);
        return copy;
    }

    /**
     * Read at least `size` bytes from an offset into the window, and more if they fit. Earlier addresses from `at` are
     * invalid afterwards.
     *
     * Throws EOFException when the file has become shorter.
     */
    void need(long offset, long size) throws IOException {
        if (offset >= start && offset + size <= stop) {
            return;
        }
        long kept = offset >= start && offset < stop ? stop - offset : 0L;
        ByteBuffer before = buffer;
        long from = at(offset);
        if (size > buffer.capacity()) {
            // Double it, so that slowly growing blocks do not each allocate a window.
            long room = Math.max(size, Math.min(2L * buffer.capacity(), Layout.MAX_BODY_BYTES));
            use(ByteBuffer.allocateDirect((int) room));
        }
        if (kept > 0) {
            Platform.copyMemory(null, from, null, address, kept);
        }
        // Keep the old buffer alive until its bytes are copied.
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

    /** Close the file. The window stays readable. */
    void close() throws IOException {
        if (file != null) {
            file.close();
        } else {
            stream.close();
        }
    }
}
