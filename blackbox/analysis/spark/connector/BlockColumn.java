package blackbox;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.Decimal;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarArray;
import org.apache.spark.sql.vectorized.ColumnarMap;
import org.apache.spark.unsafe.types.UTF8String;

/** A column vector that reads each value from the current block in place. Texts and bytes are copied to the heap. */
abstract class BlockColumn extends ColumnVector {
    final Block block;

    BlockColumn(DataType type, Block block) {
        super(type);
        this.block = block;
    }

    /** Return the vector that reads `column`. */
    static BlockColumn of(Column column, Block block) {
        if (column.field != null) {
            return FieldColumn.of(column, block);
        }
        switch (column.number) {
            case Column.FEED:
                return new FeedColumn(block);
            case Column.DATE:
                return new DateColumn(block);
            case Column.SLICE:
                return new SliceColumn(block);
            case Column.TOPIC:
                return new TopicColumn(block);
            case Column.SYMBOL:
                return new SymbolColumn(block);
            case Column.TYPE:
                return new TypeColumn(block);
            case Column.TS_EVENT:
                return new EventColumn(block);
            case Column.TS_OUT:
                return new OutColumn(block);
            case Column.TS_RECV:
                return new ReceivedColumn(block);
            case Column.EVENT_TIME:
                return new EventTimeColumn(block);
            case Column.OUT_TIME:
                return new OutTimeColumn(block);
            case Column.RECV_TIME:
                return new ReceivedTimeColumn(block);
            case Column.EPOCH:
                return new EpochColumn(block);
            case Column.SEQUENCE:
                return new SequenceColumn(block);
            default:
                return new PayloadColumn(block);
        }
    }

    public void close() {
    }

    public boolean hasNull() {
        return false;
    }

    public int numNulls() {
        return 0;
    }

    public boolean isNullAt(int i) {
        return false;
    }

    private RuntimeException none() {
        return new UnsupportedOperationException("a column of " + dataType() + " was read as something else");
    }

    public boolean getBoolean(int i) {
        throw none();
    }

    public byte getByte(int i) {
        throw none();
    }

    public short getShort(int i) {
        throw none();
    }

    public int getInt(int i) {
        throw none();
    }

    public long getLong(int i) {
        throw none();
    }

    public float getFloat(int i) {
        throw none();
    }

    public double getDouble(int i) {
        throw none();
    }

    public ColumnarArray getArray(int i) {
        throw none();
    }

    public ColumnarMap getMap(int i) {
        throw none();
    }

    public Decimal getDecimal(int i, int precision, int scale) {
        throw none();
    }

    public UTF8String getUTF8String(int i) {
        throw none();
    }

    public byte[] getBinary(int i) {
        throw none();
    }

    public ColumnVector getChild(int i) {
        throw none();
    }

    static final class FeedColumn extends BlockColumn {
        private Day day;
        private UTF8String name;

        FeedColumn(Block block) {
            super(DataTypes.StringType, block);
        }

        public UTF8String getUTF8String(int i) {
            if (day != block.day) {
                day = block.day;
                name = UTF8String.fromString(day.feed);
            }
            return name;
        }
    }

    static final class DateColumn extends BlockColumn {
        DateColumn(Block block) {
            super(DataTypes.DateType, block);
        }

        public int getInt(int i) {
            return block.day.date;
        }
    }

    static final class SliceColumn extends BlockColumn {
        SliceColumn(Block block) {
            super(DataTypes.IntegerType, block);
        }

        public int getInt(int i) {
            return block.slice;
        }
    }

    static final class TopicColumn extends BlockColumn {
        TopicColumn(Block block) {
            super(DataTypes.StringType, block);
        }

        public UTF8String getUTF8String(int i) {
            return block.topic(i);
        }
    }

    static final class SymbolColumn extends BlockColumn {
        SymbolColumn(Block block) {
            super(DataTypes.StringType, block);
        }

        public UTF8String getUTF8String(int i) {
            return block.symbol(i);
        }
    }

    static final class TypeColumn extends BlockColumn {
        TypeColumn(Block block) {
            super(DataTypes.StringType, block);
        }

        public boolean hasNull() {
            return true;
        }

        public boolean isNullAt(int i) {
            return block.type(i) == null;
        }

        public UTF8String getUTF8String(int i) {
            return block.type(i);
        }
    }

    static final class EventColumn extends BlockColumn {
        EventColumn(Block block) {
            super(DataTypes.LongType, block);
        }

        public long getLong(int i) {
            return block.tsEvent(i);
        }
    }

    static final class OutColumn extends BlockColumn {
        OutColumn(Block block) {
            super(DataTypes.LongType, block);
        }

        public long getLong(int i) {
            return block.tsOut;
        }
    }

    static final class ReceivedColumn extends BlockColumn {
        ReceivedColumn(Block block) {
            super(DataTypes.LongType, block);
        }

        public long getLong(int i) {
            return block.tsRecv;
        }
    }

    static final class EventTimeColumn extends BlockColumn {
        EventTimeColumn(Block block) {
            super(DataTypes.TimestampType, block);
        }

        public boolean hasNull() {
            return true;
        }

        public boolean isNullAt(int i) {
            return block.tsEvent(i) == 0;
        }

        public long getLong(int i) {
            return Block.micros(block.tsEvent(i));
        }
    }

    static final class OutTimeColumn extends BlockColumn {
        OutTimeColumn(Block block) {
            super(DataTypes.TimestampType, block);
        }

        public long getLong(int i) {
            return Block.micros(block.tsOut);
        }
    }

    static final class ReceivedTimeColumn extends BlockColumn {
        ReceivedTimeColumn(Block block) {
            super(DataTypes.TimestampType, block);
        }

        public long getLong(int i) {
            return Block.micros(block.tsRecv);
        }
    }

    static final class EpochColumn extends BlockColumn {
        EpochColumn(Block block) {
            super(DataTypes.LongType, block);
        }

        public long getLong(int i) {
            return block.epoch;
        }
    }

    static final class SequenceColumn extends BlockColumn {
        SequenceColumn(Block block) {
            super(DataTypes.LongType, block);
        }

        public long getLong(int i) {
            return block.sequenceOf(i);
        }
    }

    static final class PayloadColumn extends BlockColumn {
        PayloadColumn(Block block) {
            super(DataTypes.BinaryType, block);
        }

        public boolean hasNull() {
            return true;
        }

        public boolean isNullAt(int i) {
            return !block.hasValue(i);
        }

        public byte[] getBinary(int i) {
            return block.payload(i);
        }
    }
}
