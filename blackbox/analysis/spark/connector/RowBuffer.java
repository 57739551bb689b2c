package blackbox;

import org.apache.spark.sql.execution.vectorized.OnHeapColumnVector;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DateType;
import org.apache.spark.sql.types.DecimalType;
import org.apache.spark.sql.types.DoubleType;
import org.apache.spark.sql.types.FloatType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** Collects the rows of small blocks into one batch, because each batch costs Spark as much as some hundred rows. */
final class RowBuffer {
    static final int ROOM = 4096;

    private final BlockColumn[] sources;
    private final WritableColumnVector[] targets;
    private final ColumnarBatch batch;
    int size;

    RowBuffer(BlockColumn[] sources) {
        this.sources = sources;
        this.targets = new WritableColumnVector[sources.length];
        for (int i = 0; i < sources.length; i++) {
            targets[i] = new OnHeapColumnVector(ROOM, sources[i].dataType());
        }
        this.batch = new ColumnarBatch((ColumnVector[]) targets);
    }

    /** Append the first `count` wanted rows of the current block. */
    void add(int count) {
        for (int i = 0; i < sources.length; i++) {
            for (int row = 0; row < count; row++) {
                if (sources[i].isNullAt(row)) {
                    targets[i].putNull(size + row);
                } else {
                    put(sources[i], row, targets[i], size + row);
                }
            }
        }
        size += count;
    }

    /** Hand out the batch; call `reset` before the next `add`. */
    ColumnarBatch take() {
        batch.setNumRows(size);
        size = 0;
        return batch;
    }

    /** Empty the columns once Spark has finished with the last batch. */
    void reset() {
        for (int i = 0; i < targets.length; i++) {
            targets[i].reset();
        }
    }

    void close() {
        batch.close();
    }

    private static void put(BlockColumn source, int from, WritableColumnVector target, int to) {
        DataType type = source.dataType();
        if (type instanceof StringType) {
            target.putByteArray(to, source.getUTF8String(from).getBytes());
        } else if (type instanceof BinaryType) {
            target.putByteArray(to, source.getBinary(from));
        } else if (type instanceof DecimalType) {
            DecimalType decimal = (DecimalType) type;
            target.putDecimal(to, source.getDecimal(from, decimal.precision(), decimal.scale()), decimal.precision());
        } else if (type instanceof IntegerType || type instanceof DateType) {
            target.putInt(to, source.getInt(from));
        } else if (type instanceof ShortType) {
            target.putShort(to, source.getShort(from));
        } else if (type instanceof ByteType) {
            target.putByte(to, source.getByte(from));
        } else if (type instanceof DoubleType) {
            target.putDouble(to, source.getDouble(from));
        } else if (type instanceof FloatType) {
            target.putFloat(to, source.getFloat(from));
        } else if (type instanceof BooleanType) {
            target.putBoolean(to, source.getBoolean(from));
        } else {
            target.putLong(to, source.getLong(from));
        }
    }
}
