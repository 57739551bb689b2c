package blackbox;

import java.io.Serializable;

import com.fasterxml.jackson.databind.JsonNode;

/** One message type of a feed's schema: how its payloads are known, and what fields they have. */
final class MessageType implements Serializable {
    final String name;
    final int kind;
    /** Where in a payload its type stands. */
    final int typeOffset;
    /** Of every payload of that type. */
    final int bytes;
    final Field[] fields;
    /** As the manifest has it: two days that are read together must have the same. */
    final String layout;

    private MessageType(String name, int kind, int typeOffset, int bytes, Field[] fields, String layout) {
        this.name = name;
        this.kind = kind;
        this.typeOffset = typeOffset;
        this.bytes = bytes;
        this.fields = fields;
        this.layout = layout;
    }

    /** The type of a character or a name, as a manifest's schema describes it; `scaled`: prices stay integers. */
    static MessageType of(JsonNode schema, String asked, boolean scaled, String schemaName, String day) {
        JsonNode told = null;
        String kind = null;
        StringBuilder known = new StringBuilder();
        java.util.Iterator<String> characters = schema.fieldNames();
        while (characters.hasNext()) {
            String character = (String) characters.next();
            JsonNode one = Json.of(schema, character);
            String name = one.has("name") ? Json.text(one, "name") : character;
            known.append(known.length() > 0 ? " " : "").append(name);
            if (asked.equals(character) || asked.equals(name)) {
                told = one;
                kind = character;
            }
        }
        if (told == null) {
            throw Refused.of("schema '" + schemaName + "': message type was '" + asked + "', expected one of: "
                + (known.length() > 0 ? known.toString() : "none: its payloads are plain bytes"));
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
                throw Refused.of(day + ": field '" + fields[i].name + "' of type '" + asked + "' ends behind its "
                    + bytes + " bytes");
            }
        }
        int typeOffset = Json.number(told, "type_offset", 0);
        String layout = bytes + " " + typeOffset + " " + list.toString();
        return new MessageType(asked, kind.charAt(0), typeOffset, bytes, fields, layout);
    }
}
