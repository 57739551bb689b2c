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

/** A filter, as far as blocks can be passed over by it: says no only where no message can match. */
abstract class Test implements Serializable {
    private static final long MICRO = 1000L;

    /** Whether messages of which this is known may match. */
    abstract boolean may(Facts facts);

    /** Whether it looks at nothing but topics. */
    boolean isOfTopics() {
        return false;
    }

    /** The bounds that it sets to a number, put together with those that are there. */
    void bound(int number, long[] bounds) {
    }

    /** What Spark asks for; null: it cannot be used to pass over anything. */
    static Test of(Predicate asked) {
        String name = asked.name();
        Expression[] parts = asked.children();
        if (name.equals("AND") || name.equals("OR")) {
            Test left = of((Predicate) parts[0]);
            Test right = of((Predicate) parts[1]);
            if (name.equals("OR")) {
                return left == null || right == null ? null : new Any(new Test[] {left, right});
            }
            if (left == null || right == null) {
                return left == null ? right : left;
            }
            return new All(new Test[] {left, right});
        }
        if (parts.length < 2) {
            return null;
        }
        if (parts[0] instanceof Literal && parts[1] instanceof NamedReference) {
            return of(turned(name), (NamedReference) parts[1], new Expression[] {parts[0]});
        }
        if (!(parts[0] instanceof NamedReference)) {
            return null;
        }
        return of(name, (NamedReference) parts[0], (Expression[]) Arrays.copyOfRange(parts, 1, parts.length));
    }

    /** What a comparison is called when its sides change places. */
    private static String turned(String name) {
        if (name.startsWith("<") && !name.equals("<=>") && !name.equals("<>")) {
            return ">" + name.substring(1);
        }
        if (name.startsWith(">")) {
            return "<" + name.substring(1);
        }
        return name.equals("=") || name.equals("<=>") ? name : "";
    }

    private static Test of(String name, NamedReference reference, Expression[] values) {
        if (reference.fieldNames().length != 1) {
            return null;
        }
        String column = reference.fieldNames()[0].toLowerCase(java.util.Locale.ROOT);
        List<Test> any = new ArrayList<Test>();
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
            Test one = value instanceof UTF8String
                ? Text.of(name, column, ((UTF8String) value).getBytes())
                : value instanceof Number ? ofNumber(name, column, ((Number) value).longValue()) : null;
            if (one == null) {
                return null;
            }
            any.add(one);
        }
        return any.size() == 1 ? (Test) any.get(0) : new Any((Test[]) any.toArray(new Test[0]));
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

    private static Test ofNumber(String name, String column, long value) {
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

    /** A number lies within bounds, both of them wanted. */
    static final class Between extends Test {
        private final int number;
        private final long first;
        private final long last;

        Between(int number, long first, long last) {
            this.number = number;
            this.first = first;
            this.last = last;
        }

        boolean may(Facts facts) {
            return facts.high[number] >= first && facts.low[number] <= last;
        }

        void bound(int asked, long[] bounds) {
            if (asked == number) {
                bounds[0] = Math.max(bounds[0], first);
                bounds[1] = Math.min(bounds[1], last);
            }
        }
    }

    /** All of some tests. */
    static final class All extends Test {
        private final Test[] tests;

        All(Test[] tests) {
            this.tests = tests;
        }

        boolean may(Facts facts) {
            for (int i = 0; i < tests.length; i++) {
                if (!tests[i].may(facts)) {
                    return false;
                }
            }
            return true;
        }

        boolean isOfTopics() {
            return ofTopics(tests);
        }

        void bound(int number, long[] bounds) {
            for (int i = 0; i < tests.length; i++) {
                tests[i].bound(number, bounds);
            }
        }
    }

    /** One of some tests at least. */
    static final class Any extends Test {
        private final Test[] tests;

        Any(Test[] tests) {
            this.tests = tests;
        }

        boolean may(Facts facts) {
            for (int i = 0; i < tests.length; i++) {
                if (tests[i].may(facts)) {
                    return true;
                }
            }
            return false;
        }

        boolean isOfTopics() {
            return ofTopics(tests);
        }
    }

    private static boolean ofTopics(Test[] tests) {
        for (int i = 0; i < tests.length; i++) {
            if (!tests[i].isOfTopics()) {
                return false;
            }
        }
        return true;
    }
}
