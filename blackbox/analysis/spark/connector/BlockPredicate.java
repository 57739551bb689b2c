package blackbox;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

import org.apache.spark.sql.connector.expressions.Expression;
import org.apache.spark.sql.connector.expressions.Literal;
import org.apache.spark.sql.connector.expressions.NamedReference;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * A pushed-down filter, used to skip blocks. It answers false only when no message of a block can match; Spark itself
 * filters the rows.
 */
abstract class BlockPredicate implements Serializable {
    private static final long MICRO = 1000L;

    /** Return false when no message within these bounds can match. */
    abstract boolean mayMatch(BlockBounds bounds);

    /** Return true if the predicate depends only on topics. */
    boolean isOfTopics() {
        return false;
    }

    /** Narrow `limits`, the first and last value of a number that can match, both included. */
    void narrow(int number, long[] limits) {
    }

    /** Translate a filter of Spark; null when it cannot help to skip blocks. */
    static BlockPredicate of(Predicate asked) {
        String name = asked.name();
        Expression[] parts = asked.children();
        if (name.equals("AND") || name.equals("OR")) {
            BlockPredicate left = of((Predicate) parts[0]);
            BlockPredicate right = of((Predicate) parts[1]);
            if (name.equals("OR")) {
                return left == null || right == null ? null : new Any(new BlockPredicate[] {left, right});
            }
            if (left == null || right == null) {
                return left == null ? right : left;
            }
            return new All(new BlockPredicate[] {left, right});
        }
        if (parts.length < 2) {
            return null;
        }
        if (parts[0] instanceof Literal && parts[1] instanceof NamedReference) {
            return of(mirrored(name), (NamedReference) parts[1], new Expression[] {parts[0]});
        }
        if (!(parts[0] instanceof NamedReference)) {
            return null;
        }
        return of(name, (NamedReference) parts[0], (Expression[]) Arrays.copyOfRange(parts, 1, parts.length));
    }

    /** Return the comparison with its sides swapped: "<" for ">". */
    private static String mirrored(String name) {
        if (name.startsWith("<") && !name.equals("<=>") && !name.equals("<>")) {
            return ">" + name.substring(1);
        }
        if (name.startsWith(">")) {
            return "<" + name.substring(1);
        }
        return name.equals("=") || name.equals("<=>") ? name : "";
    }

    private static BlockPredicate of(String name, NamedReference reference, Expression[] values) {
        if (reference.fieldNames().length != 1) {
            return null;
        }
        String column = reference.fieldNames()[0].toLowerCase(java.util.Locale.ROOT);
        List<BlockPredicate> any = new ArrayList<BlockPredicate>();
        for (int i = 0; i < values.length; i++) {
            if (!(values[i] instanceof Literal)) {
                return null;
            }
            Object value = ((Literal) values[i]).value();
            if (value == null) {
                if (name.equals("<=>")) {
                    return null;
                }
                continue;
            }
            BlockPredicate one = value instanceof UTF8String
                ? Text.of(name, column, ((UTF8String) value).getBytes())
                : value instanceof Number ? ofNumber(name, column, ((Number) value).longValue()) : null;
            if (one == null) {
                return null;
            }
            any.add(one);
        }
        return any.size() == 1 ? (BlockPredicate) any.get(0)
            : new Any((BlockPredicate[]) any.toArray(new BlockPredicate[0]));
    }

    private static int numberOf(String column) {
        String[] names = {"date", "slice", "ts_event", "ts_out", "ts_recv", "epoch", "sequence"};
        String[] micros = {"", "", "event_time", "out_time", "recv_time", "", ""};
        for (int i = 0; i < names.length; i++) {
            if (column.equals(names[i]) || column.equals(micros[i])) {
                return i;
            }
        }
        return -1;
    }

    private static BlockPredicate ofNumber(String name, String column, long value) {
        int number = numberOf(column);
        if (number < 0) {
            return null;
        }
        long first = value;
        long last = value;
        if (column.endsWith("_time")) {
            if (value > Long.MAX_VALUE / MICRO - 1 || value < Long.MIN_VALUE / MICRO + 1) {
                return null;
            }
            first = value * MICRO;
            last = first + MICRO - 1;
        }
        if (name.equals("=") || name.equals("<=>") || name.equals("IN")) {
            return new Between(number, first, last);
        }
        if (name.equals("<")) {
            return first == Long.MIN_VALUE ? null : new Between(number, Long.MIN_VALUE, first - 1);
        }
        if (name.equals("<=")) {
            return new Between(number, Long.MIN_VALUE, last);
        }
        if (name.equals(">")) {
            return last == Long.MAX_VALUE ? null : new Between(number, last + 1, Long.MAX_VALUE);
        }
        return name.equals(">=") ? new Between(number, first, Long.MAX_VALUE) : null;
    }

    /** A number from `first` to `last`, both included. */
    static final class Between extends BlockPredicate {
        private final int number;
        private final long first;
        private final long last;

        Between(int number, long first, long last) {
            this.number = number;
            this.first = first;
            this.last = last;
        }

        boolean mayMatch(BlockBounds bounds) {
            return bounds.high[number] >= first && bounds.low[number] <= last;
        }

        void narrow(int asked, long[] limits) {
            if (asked == number) {
                limits[0] = Math.max(limits[0], first);
                limits[1] = Math.min(limits[1], last);
            }
        }
    }

    /** All of several predicates. */
    static final class All extends BlockPredicate {
        private final BlockPredicate[] predicates;

        All(BlockPredicate[] predicates) {
            this.predicates = predicates;
        }

        boolean mayMatch(BlockBounds bounds) {
            for (int i = 0; i < predicates.length; i++) {
                if (!predicates[i].mayMatch(bounds)) {
                    return false;
                }
            }
            return true;
        }

        boolean isOfTopics() {
            return ofTopics(predicates);
        }

        void narrow(int number, long[] limits) {
            for (int i = 0; i < predicates.length; i++) {
                predicates[i].narrow(number, limits);
            }
        }
    }

    /** At least one of several predicates. */
    static final class Any extends BlockPredicate {
        private final BlockPredicate[] predicates;

        Any(BlockPredicate[] predicates) {
            this.predicates = predicates;
        }

        boolean mayMatch(BlockBounds bounds) {
            for (int i = 0; i < predicates.length; i++) {
                if (predicates[i].mayMatch(bounds)) {
                    return true;
                }
            }
            return false;
        }

        boolean isOfTopics() {
            return ofTopics(predicates);
        }
    }

    private static boolean ofTopics(BlockPredicate[] predicates) {
        for (int i = 0; i < predicates.length; i++) {
            if (!predicates[i].isOfTopics()) {
                return false;
            }
        }
        return true;
    }
}
