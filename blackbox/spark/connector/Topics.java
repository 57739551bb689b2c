package blackbox;

import java.util.Arrays;

import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The topics that a reader has met, and their parts: each becomes text once for all blocks of a partition.
 *
 * A hash table in columns. Four words of a slot tell which topic it is, so that looking one up touches one cache line:
 * its size, and all of its bytes if there are 16 at most, else a hash and the last eight.
 */
final class Topics {
    private static final long FACTOR = 0x9E3779B97F4A7C15L;
    private static final int WORDS = 4;
    private static final int SHORT = 16;

    private int slots = 1 << 10;
    private int count;
    private long[] words = new long[WORDS * slots];
    UTF8String[] topics = new UTF8String[slots];
    UTF8String[] symbols = new UTF8String[slots];
    /** Null: the topic has no dot. */
    UTF8String[] types = new UTF8String[slots];
    /** Whether the filters let messages of it through. */
    boolean[] wanted = new boolean[slots];

    /** What topics must match; only of topics. */
    private final Test[] tests;
    private final Facts facts = new Facts();

    Topics(Test[] tests) {
        this.tests = tests;
    }

    /** The slot of the topic of `size` bytes at an address: good until the next one is looked up. */
    int slotOf(long at, int size) {
        long first = size <= SHORT ? first(at, size) : hash(at, size);
        long last = size >= 8 ? Platform.getLong(null, at + size - 8) : 0L;
        int slot = place(first, last, size);
        while (topics[slot] != null) {
            int word = WORDS * slot;
            if (words[word] == first && words[word + 1] == last && words[word + 2] == size
                    && (size <= SHORT || same(topics[slot], at, size))) {
                return slot;
            }
            slot = (slot + 1) & (slots - 1);
        }
        return add(at, size, first, last, slot);
    }

    private int place(long first, long last, long size) {
        long mixed = (first * FACTOR ^ last ^ size) * FACTOR;
        return (int) (mixed >>> 40) & (slots - 1);
    }

    /** The first eight bytes, or all of fewer; parts may overlap, for the size is compared, too. */
    private static long first(long at, int size) {
        if (size >= 8) {
            return Platform.getLong(null, at);
        }
        if (size >= 4) {
            return Records.u32(at) | Records.u32(at + size - 4) << 32;
        }
        long word = 0;
        for (int i = 0; i < size; i++) {
            word = word << 8 | Platform.getByte(null, at + i) & 0xFFL;
        }
        return word;
    }

    private static long hash(long at, int size) {
        long hash = size;
        for (int i = 0; i + 8 <= size; i += 8) {
            hash = (hash ^ Platform.getLong(null, at + i)) * FACTOR;
            hash ^= hash >>> 32;
        }
        return hash;
    }

    private static boolean same(UTF8String known, long at, int size) {
        for (int i = 0; i < size; i++) {
            if (known.getByte(i) != Platform.getByte(null, at + i)) {
                return false;
            }
        }
        return true;
    }

    private int add(long at, int size, long first, long last, int slot) {
        byte[] bytes = new byte[size];
        Platform.copyMemory(null, at, bytes, Platform.BYTE_ARRAY_OFFSET, size);
        int dot = size - 1;
        while (dot >= 0 && bytes[dot] != '.') {
            dot--;
        }
        int word = WORDS * slot;
        words[word] = first;
        words[word + 1] = last;
        words[word + 2] = size;
        topics[slot] = UTF8String.fromBytes(bytes);
        // Arrays of their own: Spark copies what is only a part of one, at every row.
        symbols[slot] = dot < 0 ? topics[slot] : UTF8String.fromBytes((byte[]) Arrays.copyOf(bytes, dot));
        types[slot] = dot < 0 ? null : UTF8String.fromBytes((byte[]) Arrays.copyOfRange(bytes, dot + 1, size));
        facts.topic(topics[slot], symbols[slot], types[slot]);
        boolean all = true;
        for (int i = 0; i < tests.length; i++) {
            all &= tests[i].may(facts);
        }
        wanted[slot] = all;
        if (++count * 2 > slots) {
            grow();
            return slotOf(at, size);
        }
        return slot;
    }

    private void grow() {
        int before = slots;
        long[] oldWords = words;
        UTF8String[] oldTopics = topics;
        UTF8String[] oldSymbols = symbols;
        UTF8String[] oldTypes = types;
        boolean[] oldWanted = wanted;
        slots = 2 * before;
        words = new long[WORDS * slots];
        topics = new UTF8String[slots];
        symbols = new UTF8String[slots];
        types = new UTF8String[slots];
        wanted = new boolean[slots];
        for (int i = 0; i < before; i++) {
            if (oldTopics[i] != null) {
                int from = WORDS * i;
                int slot = place(oldWords[from], oldWords[from + 1], oldWords[from + 2]);
                while (topics[slot] != null) {
                    slot = (slot + 1) & (slots - 1);
                }
                System.arraycopy(oldWords, from, words, WORDS * slot, WORDS);
                topics[slot] = oldTopics[i];
                symbols[slot] = oldSymbols[i];
                types[slot] = oldTypes[i];
                wanted[slot] = oldWanted[i];
            }
        }
    }
}
