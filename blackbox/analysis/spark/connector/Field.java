package blackbox;

import java.io.Serializable;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;

/** A field of a message type: its offset in the payload, its format, and the type of its column. */
final class Field implements Serializable {
    static final int INTEGER = 0;
    static final int PRICE = 1;
    static final int NANOSECONDS = 2;
    static final int SECONDS = 3;
    static final int TEXT = 4;
    static final int RAW = 5;
    static final int FLOAT = 6;
    static final int BOOLEAN = 7;
    static final int PRICE_FLOAT = 8;

    /** Spark keeps decimals of up to 18 digits in a long; longer ones are a slow BigDecimal. */
    static final int PRICE_DIGITS = 18;
    private static final long PRICE_LIMIT = 999999999999999999L;
    private static final long SECONDS_LIMIT = Long.MAX_VALUE / 1000000L;

    final String name;
    final int meaning;
    final int offset;
    final int size;
    final boolean big;
    final boolean signed;
    final DataType type;
    /** For a price as a float: 10 to the power of its decimals. */
    final double scale;
    /** True if one integer means that there is no value; next, the bits of that integer. */
    private final boolean hasAbsent;
    private final long absent;
    /** True if the column cannot hold all integers of the field; next, the largest that it can hold. */
    private final boolean isLimited;
    private final long limit;

    /**
     * A field as the manifest describes it.
     *
     * `format` is numpy's, such as ">u4" or "|S8"; "|V6" with `sinceMidnight` is an integer of six bytes (ns).
     * `prices` is "decimal", "float" or "integer".
     * `decimals` is -1 unless it is a price. `utc` is the unit of a time since 1970, else "".
     */
    Field(String name, String format, int offset, int decimals, String utc, boolean sinceMidnight, String prices,
            boolean hasAbsent, long absent) {
        this.hasAbsent = hasAbsent;
        this.absent = absent;
        this.name = name;
        this.offset = offset;
        this.scale = decimals < 0 ? 1 : Double.parseDouble("1e" + decimals);
        this.size = Integer.parseInt(format.substring(2));
        char kind = format.charAt(1);
        boolean integer = kind == 'i' || kind == 'u' || sinceMidnight;
        this.big = format.charAt(0) == '>' || kind == 'V';
        this.signed = kind == 'i' || (kind == 'V' && size == 8);
        if (kind == 'S') {
            this.meaning = TEXT;
            this.type = DataTypes.StringType;
        } else if (kind == 'f') {
            this.meaning = FLOAT;
            this.type = size == 4 ? DataTypes.FloatType : DataTypes.DoubleType;
        } else if (kind == 'b') {
            this.meaning = BOOLEAN;
            this.type = DataTypes.BooleanType;
        } else if (!integer || size > 8) {
            this.meaning = RAW;
            this.type = DataTypes.BinaryType;
        } else if (utc.length() > 0) {
            this.meaning = utc.equals("s") ? SECONDS : NANOSECONDS;
            this.type = DataTypes.TimestampType;
        } else if (decimals >= 0 && prices.equals("float")) {
            this.meaning = PRICE_FLOAT;
            this.type = DataTypes.DoubleType;
        } else if (decimals >= 0 && prices.equals("decimal")) {
            this.meaning = PRICE;
            this.type = DataTypes.createDecimalType(PRICE_DIGITS, decimals);
        } else {
            this.meaning = INTEGER;
            this.type = ofInteger(size, signed || sinceMidnight);
        }
        this.isLimited = size == 8 && (meaning == PRICE || meaning == SECONDS
            || !signed && (meaning == NANOSECONDS || sinceMidnight));
        this.limit = meaning == PRICE ? PRICE_LIMIT : meaning == SECONDS ? SECONDS_LIMIT : Long.MAX_VALUE;
    }

    /** Return true if the column may hold nulls, for the absent value or for 64-bit integers that it cannot hold. */
    boolean isNullable() {
        return hasAbsent || isLimited;
    }

    /** Return true if an integer is null in the column. */
    boolean isNull(long value) {
        return hasAbsent && value == absent
            || isLimited && (!signed && value < 0 || value > limit || value < -limit);
    }

    private static DataType ofInteger(int size, boolean signed) {
        if (size == 8) {
            // Unsigned integers keep their bits: a decimal wide enough would be a slow BigDecimal.
            return DataTypes.LongType;
        }
        if (size > 4 || (size == 4 && !signed)) {
            return DataTypes.LongType;
        }
        if (size > 2 || (size == 2 && !signed)) {
            return DataTypes.IntegerType;
        }
        return size == 2 || !signed ? DataTypes.ShortType : DataTypes.ByteType;
    }
}
