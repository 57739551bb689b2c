package blackbox.connector;

import java.io.EOFException;
import java.io.IOException;
import java.nio.ByteBuffer;
import java.nio.channels.FileChannel;
import java.nio.file.Paths;
import java.nio.file.StandardOpenOption;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.Path;
import org.apache.spark.storage.StorageUtils;
import org.apache.spark.unsafe.Platform;

/**
 * Bytes `[start, stop)` of a file, in native memory: mapped when the file is local, else read.
 *
 * No byte beyond the file's end is ever in it: a page that is mapped there would kill the process.
 */
final class Bytes {
    private static final int STEP = 1 << 20;

    final long start;
    final long stop;
    /** All of them. Its owner keeps this object: the memory goes with it. */
    final ByteBuffer buffer;
    private final long address;

    private Bytes(long start, ByteBuffer buffer, long size) {
        this.start = start;
        this.stop = start + size;
        this.buffer = buffer;
        this.address = Platform.getDirectBufferAddress(buffer);
    }

    /** Where the byte at an offset of the file is. */
    long at(long offset) {
        return address + (offset - start);
    }

    /** Map or read a part of a file. Fails with EOFException when the file ends before `stop`. */
    static Bytes of(String path, long start, long stop, Configuration settings) throws IOException {
        if (!Files.isLocal(path)) {
            return read(path, start, stop, settings);
        }
        FileChannel file = FileChannel.open(Paths.get(Files.plain(path), new String[0]), StandardOpenOption.READ);
        try {
            if (file.size() < stop) {
                throw new EOFException(
                    path + ": the file had " + file.size() + " bytes, expected " + stop + " or more");
            }
            return new Bytes(start, file.map(FileChannel.MapMode.READ_ONLY, start, stop - start), stop - start);
        } finally {
            file.close();
        }
    }

    /** As `of`, but always a copy: of what is small, or may change. */
    static Bytes read(String path, long start, long stop, Configuration settings) throws IOException {
        ByteBuffer buffer = ByteBuffer.allocateDirect((int) Math.max(1L, stop - start));
        FSDataInputStream stream = Files.system(path, settings).open(new Path(path));
        try {
            byte[] part = new byte[(int) Math.min(STEP, stop - start)];
            long at = start;
            while (at < stop) {
                int size = (int) Math.min(part.length, stop - at);
                stream.readFully(at, part, 0, size);
                buffer.put(part, 0, size);
                at += size;
            }
        } finally {
            stream.close();
        }
        return new Bytes(start, buffer, stop - start);
    }

    /**
     * Give the memory back now. Only for a reader that has come to its end: what is closed early is left to the
     * collector, for another thread of the task may still read it.
     */
    void free() {
        StorageUtils.dispose(buffer);
    }
}
