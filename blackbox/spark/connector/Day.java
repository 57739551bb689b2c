package blackbox;

import java.io.IOException;
import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.time.LocalDate;
import java.util.zip.CRC32;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.hadoop.conf.Configuration;

/** A day's directory: what its manifest tells. */
final class Day implements Serializable {
    static final String MANIFEST = "manifest.json";

    final String path;
    final String feed;
    /** Days since 1970. */
    final int date;
    final int keyBytes;
    final int slices;
    /** The name of what its payloads are. */
    final String schema;
    /** The layout of the wanted message type; null: messages of all types are wanted. */
    final MessageType record;
    /** Of the feed's slices. Null in tasks: planning has chosen among them. */
    private transient JsonNode routing;

    private Day(String path, JsonNode manifest, String records, boolean scaled) {
        JsonNode settings = Json.of(manifest, "feed");
        this.path = path;
        this.feed = Json.text(settings, "name");
        this.date = (int) LocalDate.parse(Json.text(manifest, "date")).toEpochDay();
        this.keyBytes = Json.number(settings, "key_bytes", 0);
        this.routing = Json.of(settings, "slices");
        this.slices = routing.size();
        this.schema = Json.text(settings, "schema");
        this.record = records == null ? null
            : MessageType.of(Json.of(manifest, "schema"), records, scaled, schema, Files.shown(path));
    }

    /** Read the manifest in a directory. */
    static Day read(String directory, String records, boolean scaled, Configuration settings) throws IOException {
        String path = directory + "/" + MANIFEST;
        long size = Files.size(path, settings);
        if (size < 0) {
            throw Refused.of("recording '" + Files.shown(directory) + "' was not found");
        }
        String text = new String(Bytes.read(path, 0, size, settings).copy(), StandardCharsets.UTF_8);
        JsonNode manifest;
        try {
            manifest = new ObjectMapper().readTree(text);
        } catch (IOException error) {
            throw Refused.of(Files.shown(path) + " is damaged: it is no JSON");
        }
        JsonNode format = Json.of(manifest, "format");
        if (format != null && format.asInt() != Layout.FORMAT) {
            throw Refused.of(Files.shown(path) + ": format was " + format + ", expected " + Layout.FORMAT);
        }
        String told = manifest.has("checksum") ? Json.text(manifest, "checksum") : "";
        String tail = ",\"checksum\":\"" + told + "\"}";
        String compact = compact(text);
        String right = checksum(compact.substring(0, Math.max(0, compact.length() - tail.length())));
        if (!compact.endsWith(tail) || !told.equals(right)) {
            throw Refused.of(Files.shown(path) + " is damaged, or was changed by hand: checksum was '" + told
                + "', expected '" + right + "'");
        }
        return new Day(directory, manifest, records, scaled);
    }

    /** Throws unless records of the wanted type are the same here as in the first one of the days. */
    void mustBeLike(Day first) {
        if (record == null) {
            return;
        }
        if (!schema.equals(first.schema)) {
            throw Refused.of(Files.shown(path) + " has the schema '" + schema + "' and " + Files.shown(first.path)
                + " has '" + first.schema + "', expected the same in all");
        }
        if (!record.layout.equals(first.record.layout)) {
            throw Refused.of(Files.shown(path) + " has other fields in its messages of type '" + record.name
                + "' than " + Files.shown(first.path) + ", expected the same in all");
        }
    }

    private static String checksum(String text) {
        long hash = Xxh3.hash((text + "}").getBytes(StandardCharsets.UTF_8));
        String digits = Long.toHexString(hash);
        return "0000000000000000".substring(digits.length()) + digits;
    }

    /** JSON without the spaces between its words. */
    private static String compact(String text) {
        StringBuilder kept = new StringBuilder(text.length());
        boolean quoted = false;
        for (int i = 0; i < text.length(); i++) {
            char c = text.charAt(i);
            if (quoted && c == '\\') {
                kept.append(c).append(text.charAt(++i));
                continue;
            }
            if (c == '"') {
                quoted = !quoted;
            }
            if (quoted || c > ' ') {
                kept.append(c);
            }
        }
        return kept.toString();
    }

    /** Whether topics that begin with a prefix can fall into a slice; `whole`: the prefix is all of the symbol. */
    boolean mayHold(int slice, byte[] prefix, boolean whole) {
        if (routing == null) {
            return true;
        }
        JsonNode share = Json.of(Json.of(routing, slice), "share");
        if (share != null && !share.isNull()) {
            int end = 0;
            while (end < prefix.length && prefix[end] != '.') {
                end++;
            }
            if (end == prefix.length && !whole) {
                return true;
            }
            CRC32 crc = new CRC32();
            crc.update(prefix, 0, end);
            return crc.getValue() % Json.of(share, 1).asInt() == Json.of(share, 0).asInt();
        }
        JsonNode held = Json.of(Json.of(routing, slice), "prefixes");
        int count = held == null ? 0 : held.size();
        for (int i = 0; i < count; i++) {
            byte[] one = Json.of(held, i).asText().getBytes(StandardCharsets.UTF_8);
            int shared = Math.min(one.length, prefix.length);
            if (java.util.Arrays.equals(one, 0, shared, prefix, 0, shared)) {
                return true;
            }
        }
        return count == 0;
    }

    static String sliceDirectory(String day, int slice) {
        return day + "/slice-" + padded(slice, 5);
    }

    static String padded(int number, int digits) {
        String text = Integer.toString(number);
        return text.length() >= digits ? text : "0000000000".substring(0, digits - text.length()) + text;
    }
}
