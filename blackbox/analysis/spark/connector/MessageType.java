package blackbox;

import java.io.Serializable;

import com.fasterxml.jackson.databind.JsonNode;

/** One message type of a feed's schema: the character that identifies its payloads, and their fields. */
final class MessageType implements Serializable {
    final String name;
    final int kind;
    /** Offset of the type character in a payload. */
    final int typeOffset;
    /** Length of every payload of that type, in bytes. */
    final int bytes;
    final Field[] fields;
    /** The character and the layout in the manifest. Days that are read together must have the same layout. */
    final String layout;

    private MessageType(String name, int kind, int typeOffset, int bytes, Field[] fields, String layout) {
        this.name = name;
        this.kind = kind;
        this.typeOffset = typeOffset;
        this.bytes = bytes;
        this.fields = fields;
        this.layout = layout;
    }

    /** Find a message type by name, else by character, in a manifest's schema. `prices` is the option of that name. */
    static MessageType of(JsonNode schema, String asked, String prices, String day) {
        JsonNode types = (JsonNode) schema.path("types");
        JsonNode found = null;
        String kind = null;
        boolean hidden = false;
        StringBuilder known = new StringBuilder();
        java.util.Iterator<String> characters = types.fieldNames();
        while (characters.hasNext()) {
            String character = (String) characters.next();
            JsonNode one = Json.of(types, character);
            String name = one.has("name") ? Json.text(one, "name") : null;
            known.append(known.length() > 0 ? " " : "").append(name == null ? typed(character) : name);
            hidden |= name == null && !typed(character).equals(character);
            if (asked.equals(name) || (found == null && asked.equals(character))) {
                found = one;
                kind = character;
                if (asked.equals(name)) {
                    break;
                }
            }
        }
        if (found == null) {
            throw Errors.analysis("schema '" + Json.text(schema, "name") + "': message type was '" + asked + "', expected one of: "
                + (known.length() > 0 ? known.toString() : "none: its payloads are plain bytes")
                + (hidden && asked.length() > 1
                    ? " (" + day + " has no names of types: give the character)" : ""));
        }
        JsonNode list = Json.of(found, "fields");
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
                prices,
                field.has("absent"),
                field.has("absent") ? Json.bits(field, "absent") : 0);
        }
        int bytes = Json.number(found, "bytes", 0);
        for (int i = 0; i < fields.length; i++) {
            if (fields[i].offset < 0 || fields[i].offset + fields[i].size > bytes) {
                throw Errors.analysis(day + ": field '" + fields[i].name + "' of type '" + asked + "' ends after its "
                    + bytes + " bytes");
            }
        }
        int typeOffset = Json.number(schema, "type_offset", 0);
        String layout = kind + " " + bytes + " " + typeOffset + " " + list.toString();
        return new MessageType(asked, kind.charAt(0), typeOffset, bytes, fields, layout);
    }

    /** Return a character as it is typed in Python and SQL: escaped if it is not printable. */
    private static String typed(String character) {
        int code = character.charAt(0);
        boolean plain = code > ' ' && code < 0x7F || code > 0xA0;
        return plain ? character : "\\u" + Integer.toHexString(0x10000 + code).substring(1);
    }
}
