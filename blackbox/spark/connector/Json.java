package blackbox;

import com.fasterxml.jackson.databind.JsonNode;

/** A JSON value's parts. Each cast is one that Janino, which knows no covariant results, needs to be told. */
final class Json {
    private Json() {
    }

    /** The value of a key; null: there is none. */
    static JsonNode of(JsonNode node, String key) {
        return (JsonNode) node.get(key);
    }

    static JsonNode of(JsonNode node, int place) {
        return (JsonNode) node.get(place);
    }

    static String text(JsonNode node, String key) {
        return of(node, key).asText();
    }

    /** A number, or `other` when there is none of that key. */
    static int number(JsonNode node, String key, int other) {
        JsonNode value = of(node, key);
        return value == null ? other : value.asInt();
    }
}
