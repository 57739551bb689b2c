package blackbox;

import com.fasterxml.jackson.databind.JsonNode;

/** Reads parts of a JSON value. The casts are for Janino, which does not know covariant return types. */
final class Json {
    private Json() {
    }

    /** Return the value of a key, or null. */
    static JsonNode of(JsonNode node, String key) {
        return (JsonNode) node.get(key);
    }

    static JsonNode of(JsonNode node, int place) {
        return (JsonNode) node.get(place);
    }

    static String text(JsonNode node, String key) {
        return of(node, key).asText();
    }

    /** Return the text of a key, or `other` when the key is missing. */
    static String text(JsonNode node, String key, String other) {
        JsonNode value = of(node, key);
        return value == null ? other : value.asText();
    }

    /** Return the 64 bits of a key's integer; unsigned ones need all of them. */
    static long bits(JsonNode node, String key) {
        return of(node, key).bigIntegerValue().longValue();
    }

    /** Return the number of a key, or `other` when the key is missing. */
    static int number(JsonNode node, String key, int other) {
        JsonNode value = of(node, key);
        return value == null ? other : value.asInt();
    }
}
