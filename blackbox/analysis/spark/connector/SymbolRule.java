package blackbox;

import java.io.Serializable;

import com.fasterxml.jackson.databind.JsonNode;

/** Splits a feed's topics into symbol and type, and finds the root that routing hashes; as blackbox/feed/routing/symbol.py. */
final class SymbolRule implements Serializable {
    private final byte separator;
    /** True if the symbol is the whole topic; there is no type then. */
    private final boolean whole;
    /** True if the first separator splits the topic instead of the last one. */
    private final boolean first;

    private SymbolRule(byte separator, boolean whole, boolean first) {
        this.separator = separator;
        this.whole = whole;
        this.first = first;
    }

    /** Read the rule from a feed's settings in a manifest. */
    static SymbolRule of(JsonNode feed, String where) {
        String symbol = Json.text(feed, "symbol", "before_last");
        String separator = Json.text(feed, "separator", ".");
        boolean known = symbol.equals("before_last") || symbol.equals("before_first") || symbol.equals("whole");
        if (!known || separator.length() != 1 || separator.charAt(0) == 0 || separator.charAt(0) > 127) {
            throw Errors.analysis(where + ": symbol was '" + symbol + "' with separator '" + separator
                + "', expected before_last, before_first or whole, and one ASCII character other than zero");
        }
        return new SymbolRule((byte) separator.charAt(0), symbol.equals("whole"), symbol.equals("before_first"));
    }

    /** Return the offset of the separator between symbol and type; -1 if the topic has no type. */
    int separatorOf(byte[] topic) {
        if (whole) {
            return -1;
        }
        if (first) {
            int end = rootOf(topic);
            return end == topic.length ? -1 : end;
        }
        int at = topic.length - 1;
        while (at >= 0 && topic[at] != separator) {
            at--;
        }
        return at;
    }

    /** Return the length of the root of a symbol, topic or prefix: up to its first separator, else all of it. */
    int rootOf(byte[] text) {
        int end = 0;
        while (end < text.length && text[end] != separator) {
            end++;
        }
        return end;
    }

    boolean is(SymbolRule other) {
        return other != null && separator == other.separator && whole == other.whole && first == other.first;
    }
}
