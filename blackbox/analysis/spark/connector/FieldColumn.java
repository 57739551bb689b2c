package blackbox;

import org.apache.spark.sql.types.Decimal;
import org.apache.spark.unsafe.Platform;
import org.apache.spark.unsafe.types.UTF8String;

/** A field of the wanted message type, read from the payloads in place. */
abstract class FieldColumn extends BlockColumn {
    private static final long MICROS_OF_SECOND = 1000000L;

    final int offset;
    final int size;
    final boolean big;
    final boolean signed;
    private final Field field;
    private final boolean nullable;

    FieldColumn(Field field, Block block) {
        super(field.type, block);
        this.offset = field.offset;
        this.size = field.size;
        this.big = field.big;
        this.signed = field.signed;
        this.field = field;
        this.nullable = field.isNullable();
    }

    public boolean hasNull() {
        return nullable;
    }

    public boolean isNullAt(int i) {
        return nullable && field.isNull(any(block.place(i) + offset, size, big, signed));
    }

    static BlockColumn of(Column column, Block block) {
        Field field = column.field;
        switch (field.meaning) {
            case Field.TEXT:
                return new TextColumn(field, block);
            case Field.RAW:
                return new RawColumn(field, block);
            case Field.FLOAT:
                return new FloatColumn(field, block);
            case Field.BOOLEAN:
                return new BooleanColumn(field, block);
            case Field.NANOSECONDS:
                return new NanosColumn(field, block);
            case Field.SECONDS:
                return new SecondsColumn(field, block);
            case Field.PRICE_FLOAT:
                return new PriceFloatColumn(field, block);
            case Field.PRICE:
                return new PriceColumn(field, block);
            default:
                return field.size == 4 ? (BlockColumn) new FourColumn(field, block)
                    : field.size == 8 ? (BlockColumn) new EightColumn(field, block)
                    : (BlockColumn) new OddColumn(field, block);
        }
    }

    static long eight(long at, boolean big) {
        long value = Platform.getLong(null, at);
        return big ? Long.reverseBytes(value) : value;
    }

    static long four(long at, boolean big, boolean signed) {
        int value = Platform.getInt(null, at);
        value = big ? Integer.reverseBytes(value) : value;
        return signed ? (long) value : value & 0xFFFFFFFFL;
    }

    /** An integer of one to eight bytes. */
    static long any(long at, int size, boolean big, boolean signed) {
        if (size == 4) {
            return four(at, big, signed);
        }
        if (size == 8) {
            return eight(at, big);
        }
        long value = 0;
        for (int i = 0; i < size; i++) {
            value = value << 8 | Platform.getByte(null, at + (big ? i : size - 1 - i)) & 0xFFL;
        }
        int unused = 64 - 8 * size;
        return signed ? value << unused >> unused : value;
    }

    static final class FourColumn extends FieldColumn {
        FourColumn(Field field, Block block) {
            super(field, block);
        }

        public int getInt(int i) {
            return (int) four(block.place(i) + offset, big, signed);
        }

        public long getLong(int i) {
            return four(block.place(i) + offset, big, signed);
        }
    }

    static final class EightColumn extends FieldColumn {
        EightColumn(Field field, Block block) {
            super(field, block);
        }

        public long getLong(int i) {
            return eight(block.place(i) + offset, big);
        }
    }

    static final class OddColumn extends FieldColumn {
        OddColumn(Field field, Block block) {
            super(field, block);
        }

        public byte getByte(int i) {
            return (byte) any(block.place(i) + offset, size, big, signed);
        }

        public short getShort(int i) {
            return (short) any(block.place(i) + offset, size, big, signed);
        }

        public int getInt(int i) {
            return (int) any(block.place(i) + offset, size, big, signed);
        }

        public long getLong(int i) {
            return any(block.place(i) + offset, size, big, signed);
        }
    }

    static final class FloatColumn extends FieldColumn {
        FloatColumn(Field field, Block block) {
            super(field, block);
        }

        public float getFloat(int i) {
            return Float.intBitsToFloat((int) four(block.place(i) + offset, big, true));
        }

        public double getDouble(int i) {
            return Double.longBitsToDouble(eight(block.place(i) + offset, big));
        }
    }

    static final class BooleanColumn extends FieldColumn {
        BooleanColumn(Field field, Block block) {
            super(field, block);
        }

        public boolean getBoolean(int i) {
            return Platform.getByte(null, block.place(i) + offset) != 0;
        }
    }

    static final class NanosColumn extends FieldColumn {
        NanosColumn(Field field, Block block) {
            super(field, block);
        }

        public long getLong(int i) {
            return Block.micros(any(block.place(i) + offset, size, big, signed));
        }
    }

    static final class SecondsColumn extends FieldColumn {
        SecondsColumn(Field field, Block block) {
            super(field, block);
        }

        public long getLong(int i) {
            return any(block.place(i) + offset, size, big, signed) * MICROS_OF_SECOND;
        }
    }

    /** Prices as decimals that Spark keeps in a long. */
    static final class PriceColumn extends FieldColumn {
        PriceColumn(Field field, Block block) {
            super(field, block);
        }

        public Decimal getDecimal(int i, int precision, int scale) {
            return Decimal.createUnsafe(any(block.place(i) + offset, size, big, signed), precision, scale);
        }
    }

    /** Prices as floats, exact to the last bit up to 2^53 units. */
    static final class PriceFloatColumn extends FieldColumn {
        private final double scale;

        PriceFloatColumn(Field field, Block block) {
            super(field, block);
            this.scale = field.scale;
        }

        public double getDouble(int i) {
            long units = any(block.place(i) + offset, size, big, signed);
            double exact = (double) units;
            if (!signed && units < 0) {
                exact = (double) (units >>> 1 | units & 1) * 2;
            }
            return exact / scale;
        }
    }

    static final class RawColumn extends FieldColumn {
        RawColumn(Field field, Block block) {
            super(field, block);
        }

        public byte[] getBinary(int i) {
            byte[] copy = new byte[size];
            Platform.copyMemory(null, block.place(i) + offset, copy, Platform.BYTE_ARRAY_OFFSET, size);
            return copy;
        }
    }

    /** Texts in Latin-1, without padding. Those of up to 8 bytes are cached, because venues repeat them. */
    static final class TextColumn extends FieldColumn {
        private static final int KNOWN = 1 << 12;

        private final long[] words = new long[KNOWN];
        private final UTF8String[] texts = new UTF8String[KNOWN];

        TextColumn(Field field, Block block) {
            super(field, block);
        }

        public UTF8String getUTF8String(int i) {
            long at = block.place(i) + offset;
            if (size > 8) {
                return text(at);
            }
            long word = any(at, size, false, false);
            int place = (int) (word * 0x9E3779B185EBCA87L >>> 52);
            UTF8String known = texts[place];
            if (known == null || words[place] != word) {
                known = text(at);
                words[place] = word;
                texts[place] = known;
            }
            return known;
        }

        private UTF8String text(long at) {
            int length = size;
            while (length > 0 && isPadding(Platform.getByte(null, at + length - 1))) {
                length--;
            }
            char[] characters = new char[length];
            for (int i = 0; i < length; i++) {
                characters[i] = (char) (Platform.getByte(null, at + i) & 0xFF);
            }
            return UTF8String.fromString(new String(characters));
        }

        private static boolean isPadding(byte c) {
            return c == 0 || c == ' ' || (c >= 9 && c <= 13);
        }
    }
}
