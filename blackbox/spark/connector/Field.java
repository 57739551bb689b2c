package blackbox;

import java.io.Serializable;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;

/** One field of a record: where it is, what it holds, and the column that it becomes. */
final class Field implements Serializable {
    static final int INTEGER = 0;
    static final int PRICE = 1;
    static final int NANOSECONDS = 2;
    static final int SECONDS = 3;
    static final int TEXT = 4;
    static final int RAW = 5;

    /** A decimal with as many is a long to Spark; one with more is a BigDecimal, and slow. */
    static final int PRICE_DIGITS = 18;

    final String name;
    final int meaning;
    final int offset;
    final int size;
    final boolean big;
    final boolean signed;
    final DataType type;

    /**
     * A field as a manifest describes it.
     *
     * `format`: numpy's, such as ">u4", "|S8"; "|V6" is an integer of six bytes when it counts ns since midnight.
     * `decimals`: of a price, else -1. `utc`: the unit of a time since 1970, else "".
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

    /** Whether the column may hold nulls: a price of more digits is none, venues mark so that there is no price. */
    boolean isNullable() {
        return meaning == PRICE && size == 8;
    }

    private static DataType ofInteger(int size, boolean signed) {
        if (size == 8) {
            // An unsigned one keeps its bits: a decimal that holds all of them is a BigDecimal to Spark, and slow.
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
