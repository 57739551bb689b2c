package blackbox.connector;

import java.io.Serializable;

import com.fasterxml.jackson.databind.JsonNode;

/** One message type of a feed's schema: how its payloads are known, and what fields they have. */
final class MessageType implements Serializable {
    final int kind;
    /** Where in a payload its type stands. */
    final int typeOffset;
    /** Of every payload of that type. */
    final int bytes;
    final Field[] fields;
    /** As the manifest has it: two days that are read together must have the same. */
    final String layout;

    private MessageType(int kind, int typeOffset, int bytes, Field[] fields, String layout) {
        this.kind = kind;
        this.typeOffset = typeOffset;
        this.bytes = bytes;
        this.fields = fields;
        this.layout = layout;
    }

    /** As a manifest's schema describes it; `scaled`: prices stay integers. */
    static MessageType of(JsonNode schema, String kind, boolean scaled, String where) {
        JsonNode told = Json.of(schema, kind);
        if (told == null || kind.length() != 1) {
            StringBuilder known = new StringBuilder();
            java.util.Iterator<String> names = schema.fieldNames();
            while (names.hasNext()) {
                known.append(known.length() > 0 ? " " : "").append((String) names.next());
            }
            throw new IllegalArgumentException("records was '" + kind + "', expected a message type of " + where + ": "
                + (known.length() > 0 ? known.toString() : "it has none, its payloads are plain bytes"));
        }
        JsonNode list = Json.of(told, "fields");
        Field[] fields = new Field[list.size()];
        for (int i = 0; i < fields.length; i++) {
            JsonNode field = Json.of(list, i);
            fields[i] = new Field(
                Json.text(field, "name"),
                Json.text(field, "format"),
                Json.number(field, "offset", -1),
                Json.number(field, "decimals", -1),
                field.has("utc") ? Json.text(field, "utc") : "",
                field.has("since_midnight"),
                scaled);
        }
        int bytes = Json.number(told, "bytes", 0);
        for (int i = 0; i < fields.length; i++) {
            if (fields[i].offset < 0 || fields[i].offset + fields[i].size > bytes) {
                throw new IllegalArgumentException(
                    where + ": field " + fields[i].name + " of type " + kind + " ends behind its " + bytes + " bytes");
            }
        }
        int typeOffset = Json.number(told, "type_offset", 0);
        return new MessageType(kind.charAt(0), typeOffset, bytes, fields, told.toString());
    }
}
