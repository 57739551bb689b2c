package blackbox;

import java.util.Arrays;

import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The topics that a reader has seen, with their symbol and type, so that each becomes text only once in a partition.
 *
 * An open-addressing hash table in columns. Four words identify the topic of a slot, so that a lookup touches one cache
 * line: its size, and all of its bytes if there are at most 16, else a hash and the last eight.
 */
final class Topics {
    private static final long FACTOR = 0x9E3779B97F4A7C15L;
    private static final int WORDS = 4;
    private static final int SHORT = 16;

    private int slots;
    private int count;
    private long[] words;
    UTF8String[] topics;
    UTF8String[] symbols;
    /** Null when the topic has none. */
    UTF8String[] types;
    /** True if the filters allow the topic. */
    boolean[] wanted;
    private SymbolRule rule;

    /** Predicates on topics, which must all match. */
    private final BlockPredicate[] predicates;
    private final BlockBounds bounds = new BlockBounds();

    Topics(BlockPredicate[] predicates) {
        this.predicates = predicates;
        reset(1 << 10);
    }

    /** Split topics by this rule from now on. A new rule forgets all known topics. */
    void splitBy(SymbolRule rule) {
        if (!rule.is(this.rule)) {
            this.rule = rule;
            count = 0;
            reset(slots);
        }
    }

    private void reset(int slots) {
        this.slots = slots;
        words = new long[WORDS * slots];
        topics = new UTF8String[slots];
        symbols = new UTF8String[slots];
        types = new UTF8String[slots];
        wanted = new boolean[slots];
    }

    /** Return the slot of the topic of `size` bytes at an address. It is valid until the next lookup. */
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

    /** Return the first eight bytes, or all of fewer. Parts may overlap, because the size is compared too. */
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
        int end = rule.separatorOf(bytes);
        int word = WORDS * slot;
        words[word] = first;
        words[word + 1] = last;
        words[word + 2] = size;
        topics[slot] = UTF8String.fromBytes(bytes);
        // Separate arrays: Spark would copy a slice of one at every row.
        symbols[slot] = end < 0 ? topics[slot] : UTF8String.fromBytes((byte[]) Arrays.copyOf(bytes, end));
        types[slot] = end < 0 ? null : UTF8String.fromBytes((byte[]) Arrays.copyOfRange(bytes, end + 1, size));
        bounds.topic(topics[slot], symbols[slot], types[slot]);
        boolean all = true;
        for (int i = 0; i < predicates.length; i++) {
            all &= predicates[i].mayMatch(bounds);
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
        reset(2 * before);
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
