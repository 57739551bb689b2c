package blackbox;

import java.nio.ByteBuffer;

import org.apache.spark.unsafe.Platform;

/**
 * XXH3, 64 bits, seed 0, of native memory: the checksum of heads and bodies.
 *
 * Source: xxHash specification 0.2.0, section "XXH3 algorithm description"; as blackbox/native/tables/xxh3.py.
 */
final class Xxh3 {
    private static final long[] SECRET = {
        0xbe4ba423396cfeb8L, 0x1cad21f72c81017cL, 0xdb979083e96dd4deL, 0x1f67b3b7a4a44072L,
        0x78e5c0cc4ee679cbL, 0x2172ffcc7dd05a82L, 0x8e2443f7744608b8L, 0x4c263a81e69035e0L,
        0xcb00c391bb52283cL, 0xa32e531b8b65d088L, 0x4ef90da297486471L, 0xd8acdea946ef1938L,
        0x3f349ce33f76faa8L, 0x1d4f0bc7c7bbdcf9L, 0x3159b4cd4be0518aL, 0x647378d9c97e9fc8L,
        0xc3ebd33483acc5eaL, 0xeb6313faffa081c5L, 0x49daf0b751dd0d17L, 0x9e68d429265516d3L,
        0xfca1477d58be162bL, 0xce31d07ad1b8f88fL, 0x280416958f3acb45L, 0x7e404bbbcafbd7afL
    };
    private static final long LOW_32 = 0xFFFFFFFFL;
    private static final long PRIME32_1 = 0x9E3779B1L;
    private static final long PRIME_1 = 0x9E3779B185EBCA87L;
    private static final long PRIME_2 = 0xC2B2AE3D27D4EB4FL;
    private static final long PRIME_3 = 0x165667B19E3779F9L;
    private static final int STRIPE = 64;
    private static final int STRIPES = 16;
    private static final int BLOCK = STRIPE * STRIPES;

    private Xxh3() {
    }

    /** Return the low 32 bits, as stored in a head: 0 to 2^32 - 1. */
    static long checksum(long address, long size) {
        return hash(address, size) & LOW_32;
    }

    /** Return the hash of bytes on the heap. */
    static long hash(byte[] bytes) {
        ByteBuffer copy = ByteBuffer.allocateDirect(Math.max(1, bytes.length));
        copy.put(bytes);
        return hash(Platform.getDirectBufferAddress(copy), bytes.length);
    }

    /** Return the hash of `size` bytes at an address. */
    static long hash(long at, long size) {
        if (size > 240) {
            return ofLong(at, size);
        }
        return size <= 16 ? ofShort(at, (int) size) : ofMiddle(at, (int) size);
    }

    private static long word(long at) {
        return Platform.getLong(null, at);
    }

    private static long half(long at) {
        return Platform.getInt(null, at) & LOW_32;
    }

    private static long single(long at) {
        return Platform.getByte(null, at) & 0xFFL;
    }

    /** Return eight bytes of the secret from any offset. */
    private static long secret(int place) {
        int shift = (place & 7) * 8;
        long low = SECRET[place >> 3];
        return shift == 0 ? low : (low >>> shift) | (SECRET[(place >> 3) + 1] << (64 - shift));
    }

    private static long fold(long left, long right) {
        long upper = Math.multiplyHigh(left, right) + ((left >> 63) & right) + ((right >> 63) & left);
        return upper ^ (left * right);
    }

    private static long avalanche(long value) {
        long mixed = (value ^ (value >>> 37)) * 0x165667919E3779F9L;
        return mixed ^ (mixed >>> 32);
    }

    private static long mix16(long at, int place) {
        return fold(word(at) ^ secret(place), word(at + 8) ^ secret(place + 8));
    }

    private static long ofShort(long at, int size) {
        if (size > 8) {
            long low = word(at) ^ (secret(24) ^ secret(32));
            long high = word(at + size - 8) ^ (secret(40) ^ secret(48));
            return avalanche(size + Long.reverseBytes(low) + high + fold(low, high));
        }
        if (size >= 4) {
            long value = (half(at + size - 4) + (half(at) << 32)) ^ (secret(8) ^ secret(16));
            value = (value ^ Long.rotateLeft(value, 49) ^ Long.rotateLeft(value, 24)) * 0x9FB21C651E98DF25L;
            value = (value ^ ((value >>> 35) + size)) * 0x9FB21C651E98DF25L;
            return value ^ (value >>> 28);
        }
        long value = secret(56) ^ secret(64);
        if (size > 0) {
            value = single(at) << 16 | single(at + (size >> 1)) << 24 | single(at + size - 1) | (long) size << 8;
            value ^= (secret(0) & LOW_32) ^ (secret(0) >>> 32);
        }
        value = (value ^ (value >>> 33)) * PRIME_2;
        value = (value ^ (value >>> 29)) * PRIME_3;
        return value ^ (value >>> 32);
    }

    private static long ofMiddle(long at, int size) {
        long total = size * PRIME_1;
        if (size <= 128) {
            for (int step = (size - 1) >> 5; step >= 0; step--) {
                total += mix16(at + 16 * step, 32 * step);
                total += mix16(at + size - 16 * (step + 1), 32 * step + 16);
            }
            return avalanche(total);
        }
        for (int step = 0; step < 8; step++) {
            total += mix16(at + 16 * step, 16 * step);
        }
        total = avalanche(total);
        for (int step = 8; step < size >> 4; step++) {
            total += mix16(at + 16 * step, 16 * (step - 8) + 3);
        }
        return avalanche(total + mix16(at + size - 16, 119));
    }

    private static long scramble(long lane, long key) {
        return ((lane ^ (lane >>> 47)) ^ key) * PRIME32_1;
    }

    /** Eight lanes in local variables, so that the compiler keeps them in registers. */
    private static long ofLong(long start, long size) {
        long[] s = SECRET;
        long a0 = 0xC2B2AE3DL;
        long a1 = PRIME_1;
        long a2 = PRIME_2;
        long a3 = PRIME_3;
        long a4 = 0x85EBCA77C2B2AE63L;
        long a5 = 0x85EBCA77L;
        long a6 = 0x27D4EB2F165667C5L;
        long a7 = PRIME32_1;
        long at = start;
        long left = (size - 1) / STRIPE;
        while (left > 0) {
            int stripes = (int) Math.min(left, STRIPES);
            for (int i = 0; i < stripes; i++) {
                long d0 = Platform.getLong(null, at);
                long d1 = Platform.getLong(null, at + 8);
                long d2 = Platform.getLong(null, at + 16);
                long d3 = Platform.getLong(null, at + 24);
                long d4 = Platform.getLong(null, at + 32);
                long d5 = Platform.getLong(null, at + 40);
                long d6 = Platform.getLong(null, at + 48);
                long d7 = Platform.getLong(null, at + 56);
                long k0 = d0 ^ s[i];
                long k1 = d1 ^ s[i + 1];
                long k2 = d2 ^ s[i + 2];
                long k3 = d3 ^ s[i + 3];
                long k4 = d4 ^ s[i + 4];
                long k5 = d5 ^ s[i + 5];
                long k6 = d6 ^ s[i + 6];
                long k7 = d7 ^ s[i + 7];
                a0 += d1 + (k0 & LOW_32) * (k0 >>> 32);
                a1 += d0 + (k1 & LOW_32) * (k1 >>> 32);
                a2 += d3 + (k2 & LOW_32) * (k2 >>> 32);
                a3 += d2 + (k3 & LOW_32) * (k3 >>> 32);
                a4 += d5 + (k4 & LOW_32) * (k4 >>> 32);
                a5 += d4 + (k5 & LOW_32) * (k5 >>> 32);
                a6 += d7 + (k6 & LOW_32) * (k6 >>> 32);
                a7 += d6 + (k7 & LOW_32) * (k7 >>> 32);
                at += STRIPE;
            }
            left -= stripes;
            if (stripes == STRIPES) {
                a0 = scramble(a0, s[16]);
                a1 = scramble(a1, s[17]);
                a2 = scramble(a2, s[18]);
                a3 = scramble(a3, s[19]);
                a4 = scramble(a4, s[20]);
                a5 = scramble(a5, s[21]);
                a6 = scramble(a6, s[22]);
                a7 = scramble(a7, s[23]);
            }
        }
        long last = start + size - STRIPE;
        a0 += word(last + 8) + product(word(last) ^ secret(121));
        a1 += word(last) + product(word(last + 8) ^ secret(129));
        a2 += word(last + 24) + product(word(last + 16) ^ secret(137));
        a3 += word(last + 16) + product(word(last + 24) ^ secret(145));
        a4 += word(last + 40) + product(word(last + 32) ^ secret(153));
        a5 += word(last + 32) + product(word(last + 40) ^ secret(161));
        a6 += word(last + 56) + product(word(last + 48) ^ secret(169));
        a7 += word(last + 48) + product(word(last + 56) ^ secret(177));
        long total = size * PRIME_1;
        total += fold(a0 ^ secret(11), a1 ^ secret(19));
        total += fold(a2 ^ secret(27), a3 ^ secret(35));
        total += fold(a4 ^ secret(43), a5 ^ secret(51));
        total += fold(a6 ^ secret(59), a7 ^ secret(67));
        return avalanche(total);
    }

    private static long product(long key) {
        return (key & LOW_32) * (key >>> 32);
    }
}
