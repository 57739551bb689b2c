package blackbox;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;

import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** A column of a recording: one of every message, or a field of the wanted message type. */
final class Column implements Serializable {
    static final int FEED = 0;
    static final int DATE = 1;
    static final int SLICE = 2;
    static final int TOPIC = 3;
    static final int SYMBOL = 4;
    static final int TYPE = 5;
    static final int TS_EVENT = 6;
    static final int TS_OUT = 7;
    static final int TS_RECV = 8;
    static final int EVENT_TIME = 9;
    static final int OUT_TIME = 10;
    static final int RECV_TIME = 11;
    static final int EPOCH = 12;
    static final int SEQUENCE = 13;
    static final int PAYLOAD = 14;
    /** Prefix for fields that share their name with a column of every message. */
    private static final String CLASHING = "record_";

    final String name;
    final DataType type;
    final boolean nullable;
    /** One of the constants above; -1 for a field. */
    final int number;
    /** The field; null for other columns. */
    final Field field;

    private Column(String name, DataType type, boolean nullable, int number, Field field) {
        this.name = name;
        this.type = type;
        this.nullable = nullable;
        this.number = number;
        this.field = field;
    }

    /** Return true if its values come from the record's head, without the body. */
    boolean isOfHead() {
        return number == FEED || number == DATE || number == SLICE || number == TS_OUT || number == TS_RECV
            || number == OUT_TIME || number == RECV_TIME || number == EPOCH || number == SEQUENCE;
    }

    /** Return true if its values come from the topic. */
    boolean isOfTopic() {
        return number == TOPIC || number == SYMBOL || number == TYPE;
    }

    /** Return all columns in order. `record` is the wanted message type, or null. */
    static Column[] all(MessageType record) {
        List<Column> all = new ArrayList<Column>();
        String[] names = {
            "feed", "date", "slice", "topic", "symbol", "type", "ts_event", "ts_out", "ts_recv", "event_time",
            "out_time", "recv_time", "epoch", "sequence", "payload"
        };
        for (int i = 0; i < names.length; i++) {
            if (i != PAYLOAD || record == null) {
                all.add(new Column(names[i], typeOf(i), i == TYPE || i == EVENT_TIME || i == PAYLOAD, i, null));
            }
        }
        int count = record == null ? 0 : record.fields.length;
        for (int i = 0; i < count; i++) {
            Field field = record.fields[i];
            boolean taken = false;
            for (int k = 0; k < names.length; k++) {
                taken |= names[k].equalsIgnoreCase(field.name);
            }
            all.add(new Column(taken ? CLASHING + field.name : field.name, field.type, field.isNullable(), -1, field));
        }
        return (Column[]) all.toArray(new Column[0]);
    }

    private static DataType typeOf(int number) {
        if (number <= TYPE) {
            return number == DATE ? DataTypes.DateType : number == SLICE ? DataTypes.IntegerType : DataTypes.StringType;
        }
        if (number == PAYLOAD) {
            return DataTypes.BinaryType;
        }
        return number >= EVENT_TIME && number <= RECV_TIME ? DataTypes.TimestampType : DataTypes.LongType;
    }

    static StructType schema(Column[] columns) {
        StructField[] fields = new StructField[columns.length];
        for (int i = 0; i < columns.length; i++) {
            fields[i] = DataTypes.createStructField(columns[i].name, columns[i].type, columns[i].nullable);
        }
        return DataTypes.createStructType(fields);
    }

    /** Return the columns of a given schema, under its names. Throws when one is unknown or of another type. */
    static Column[] chosen(Column[] all, StructType asked) {
        Column[] chosen = new Column[asked.length()];
        StructField[] fields = asked.fields();
        for (int i = 0; i < fields.length; i++) {
            Column own = named(all, fields[i].name());
            if (own == null) {
                throw Errors.analysis("the schema had a column '" + fields[i].name() + "', expected some of: "
                    + String.join(", ", (CharSequence[]) schema(all).fieldNames()));
            }
            if (!own.type.sameType(fields[i].dataType())) {
                throw Errors.analysis("the schema had column '" + fields[i].name() + "' as "
                    + fields[i].dataType().simpleString() + ", expected " + own.type.simpleString());
            }
            if (own.nullable && !fields[i].nullable()) {
                throw Errors.analysis("the schema had column '" + fields[i].name()
                    + "' as not null, expected that it may be");
            }
            chosen[i] = new Column(fields[i].name(), own.type, fields[i].nullable(), own.number, own.field);
        }
        return chosen;
    }

    /** Find a column by its exact name, else ignoring case as Spark does; null when there is none. */
    private static Column named(Column[] all, String name) {
        Column found = null;
        for (int i = 0; i < all.length; i++) {
            if (all[i].name.equals(name)) {
                return all[i];
            }
            found = found == null && all[i].name.equalsIgnoreCase(name) ? all[i] : found;
        }
        return found;
    }
}
