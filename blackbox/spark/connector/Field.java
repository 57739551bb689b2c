package blackbox;

import java.io.Serializable;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;

/** A field of a message type: its place in the payload, its format, and the type of its column. */
final class Field implements Serializable {
    static final int INTEGER = 0;
    static final int PRICE = 1;
    static final int NANOSECONDS = 2;
    static final int SECONDS = 3;
    static final int TEXT = 4;
    static final int RAW = 5;
    static final int FLOAT = 6;
    static final int BOOLEAN = 7;

    /** Spark keeps decimals of up to 18 digits in a long; longer ones are a slow BigDecimal. */
    static final int PRICE_DIGITS = 18;

    final String name;
    final int meaning;
    final int offset;
    final int size;
    final boolean big;
    final boolean signed;
    final DataType type;

    /**
     * A field as the manifest describes it.
     *
     * `format` is numpy's, such as ">u4" or "|S8"; "|V6" with `sinceMidnight` is an integer of six bytes (ns).
     * `decimals` is -1 unless it is a price. `utc` is the unit of a time since 1970, else "".
     */
    Field(String name, String format, int offset, int decimals, String utc, boolean sinceMidnight, boolean scaled) {
        this.name = name;
        this.offset = offset;
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
        } else if (decimals >= 0 && !scaled) {
            this.meaning = PRICE;
            this.type = DataTypes.createDecimalType(PRICE_DIGITS, decimals);
        } else {
            this.meaning = INTEGER;
            this.type = ofInteger(size, signed || sinceMidnight);
        }
    }

    /** Whether the column may hold nulls: venues mark "no price" by a number of more than 18 digits. */
    boolean isNullable() {
        return meaning == PRICE && size == 8;
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
