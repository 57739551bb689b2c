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

    /** The type of a name, or else a character, as a manifest's schema describes it; `scaled`: prices stay integers. */
    static MessageType of(JsonNode schema, String asked, boolean scaled, String schemaName, String day) {
        JsonNode told = null;
        String kind = null;
        boolean hidden = false;
        StringBuilder known = new StringBuilder();
        java.util.Iterator<String> characters = schema.fieldNames();
        while (characters.hasNext()) {
            String character = (String) characters.next();
            JsonNode one = Json.of(schema, character);
            String name = one.has("name") ? Json.text(one, "name") : null;
            known.append(known.length() > 0 ? " " : "").append(name == null ? typed(character) : name);
            hidden |= name == null && !typed(character).equals(character);
            if (asked.equals(name) || (told == null && asked.equals(character))) {
                told = one;
                kind = character;
                if (asked.equals(name)) {
                    break;
                }
            }
        }
        if (told == null) {
            throw Refused.of("schema '" + schemaName + "': message type was '" + asked + "', expected one of: "
                + (known.length() > 0 ? known.toString() : "none: its payloads are plain bytes")
                + (hidden && asked.length() > 1
                    ? " (" + day + " tells no names of types: give the character, or engine=python)" : ""));
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

    /** A character as it is typed in Python and in SQL: its code where it cannot be shown. */
    private static String typed(String character) {
        int code = character.charAt(0);
        boolean plain = code > ' ' && code < 0x7F || code > 0xA0;
        return plain ? character : "\\u" + Integer.toHexString(0x10000 + code).substring(1);
    }
}
