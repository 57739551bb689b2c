package blackbox.connector;

import org.apache.spark.unsafe.Platform;

/** The topics that a reader has met: a hash table, so that each becomes an object once. */
final class Topics {
    private static final long FACTOR = 0x9E3779B97F4A7C15L;

    private Topic[] table = new Topic[1 << 10];
    private int count;
    /** What topics must match; only of topics. */
    private final Test[] tests;
    private final Facts facts = new Facts();

    Topics(Test[] tests) {
        this.tests = tests;
    }

    /** The topic of `size` bytes at an address. */
    Topic get(long at, int size) {
        long hash = hash(at, size);
        int place = (int) hash & (table.length - 1);
        Topic found = table[place];
        while (found != null) {
            if (found.hash == hash && found.bytes.length == size && same(found.bytes, at, size)) {
                return found;
            }
            place = (place + 1) & (table.length - 1);
            found = table[place];
        }
        return add(at, size, hash, place);
    }

    /** Of all the bytes, eight at a time; the last eight may overlap those before. */
    private static long hash(long at, int size) {
        long hash = size;
        for (int i = 0; i + 8 <= size; i += 8) {
            hash = (hash ^ Platform.getLong(null, at + i)) * FACTOR;
            hash ^= hash >>> 32;
        }
        long rest = 0;
        if (size >= 8) {
            rest = Platform.getLong(null, at + size - 8);
        } else {
            for (int i = 0; i < size; i++) {
                rest = rest << 8 | Platform.getByte(null, at + i) & 0xFFL;
            }
        }
        hash = (hash ^ rest) * FACTOR;
        return hash ^ hash >>> 29;
    }

    private static boolean same(byte[] known, long at, int size) {
        int i = 0;
        while (i + 8 <= size) {
            if (Platform.getLong(known, Platform.BYTE_ARRAY_OFFSET + i) != Platform.getLong(null, at + i)) {
                return false;
            }
            i += 8;
        }
        while (i < size) {
            if (known[i] != Platform.getByte(null, at + i)) {
                return false;
            }
            i++;
        }
        return true;
    }

    private Topic add(long at, int size, long hash, int place) {
        byte[] bytes = new byte[size];
        Platform.copyMemory(null, at, bytes, Platform.BYTE_ARRAY_OFFSET, size);
        Topic topic = new Topic(bytes, hash);
        facts.topic = topic;
        for (int i = 0; i < tests.length; i++) {
            topic.wanted &= tests[i].may(facts);
        }
        table[place] = topic;
        if (++count * 2 > table.length) {
            grow();
        }
        return topic;
    }

    private void grow() {
        Topic[] before = table;
        table = new Topic[before.length * 2];
        for (int i = 0; i < before.length; i++) {
            if (before[i] != null) {
                int place = (int) before[i].hash & (table.length - 1);
                while (table[place] != null) {
                    place = (place + 1) & (table.length - 1);
                }
                table[place] = before[i];
            }
        }
    }
}
