package blackbox;

import java.io.IOException;
import java.io.Serializable;
import java.nio.charset.StandardCharsets;
import java.time.LocalDate;
import java.util.zip.CRC32;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.hadoop.conf.Configuration;

/** A recorded day, as its manifest describes it. */
final class Day implements Serializable {
    private static final long MOST_BYTES = 16L << 20;

    final String path;
    final String feed;
    /** Days since 1970-01-01. */
    final int date;
    final int keyBytes;
    final int channels;
    final int slices;
    final SymbolRule symbolRule;
    /** The name of the schema of its payloads. */
    final String schema;
    /** The wanted message type; null when all are wanted. */
    final MessageType record;
    /** The routing of the feed's slices. Null in tasks, because planning has chosen the slices. */
    private transient JsonNode routing;

    private Day(String path, JsonNode manifest, String records, String prices) {
        JsonNode settings = Json.of(manifest, "feed");
        this.path = path;
        this.feed = Json.text(settings, "name");
        this.date = (int) LocalDate.parse(Json.text(manifest, "date")).toEpochDay();
        this.keyBytes = Json.number(settings, "key_bytes", 0);
        this.channels = Json.number(settings, "channels", 1);
        this.routing = Json.of(settings, "slices");
        this.slices = routing.size();
        this.symbolRule = SymbolRule.of(settings, Files.shown(path));
        this.schema = Json.text(settings, "schema");
        this.record = records == null ? null
            : MessageType.of(Json.of(manifest, "schema"), records, prices, Files.shown(path));
    }

    /** Read the manifest of a day. Throws when it is missing, damaged or of another format. */
    static Day read(String directory, String records, String prices, Configuration settings) throws IOException {
        String path = RecordingPaths.manifest(directory);
        long size = Files.size(path, settings);
        if (size < 0) {
            throw Errors.analysis("recording '" + Files.shown(directory) + "' was not found");
        }
        if (size > MOST_BYTES) {
            throw Errors.analysis(Files.shown(path) + " has " + size + " bytes, expected at most " + MOST_BYTES);
        }
        String text = new String(Bytes.read(path, 0, size, settings).copy(), StandardCharsets.UTF_8);
        JsonNode manifest;
        try {
            manifest = new ObjectMapper().readTree(text);
        } catch (IOException error) {
            throw Errors.analysis(Files.shown(path) + " is damaged: it is not JSON");
        }
        JsonNode format = Json.of(manifest, "format");
        if (format != null && format.asInt() != Layout.VERSION) {
            throw Errors.analysis(Files.shown(path) + ": format was " + format + ", expected " + Layout.VERSION);
        }
        String recorded = manifest.has("checksum") ? Json.text(manifest, "checksum") : "";
        String tail = ",\"checksum\":\"" + recorded + "\"}";
        String compact = compact(text);
        String right = checksum(compact.substring(0, Math.max(0, compact.length() - tail.length())));
        if (!compact.endsWith(tail) || !recorded.equals(right)) {
            throw Errors.analysis(Files.shown(path) + " is damaged, or was changed by hand: checksum was '" + recorded
                + "', expected '" + right + "'");
        }
        return new Day(directory, manifest, records, prices);
    }

    /** Return the entries of `closed.json` by slice; null if it is missing or damaged. */
    static JsonNode closed(String directory, Configuration settings) throws IOException {
        String path = RecordingPaths.closed(directory);
        long size = Files.size(path, settings);
        if (size < 0 || size > MOST_BYTES) {
            return null;
        }
        try {
            return new ObjectMapper().readTree(Bytes.read(path, 0, size, settings).copy());
        } catch (IOException error) {
            return null;
        }
    }

    /** Throw unless the wanted message type has the same layout as in the first day. */
    void mustBeLike(Day first) {
        if (record == null) {
            return;
        }
        if (!schema.equals(first.schema)) {
            throw Errors.analysis(Files.shown(path) + " has the schema '" + schema + "' and " + Files.shown(first.path)
                + " has '" + first.schema + "', expected the same in all");
        }
        if (!record.layout.equals(first.record.layout)) {
            throw Errors.analysis(Files.shown(path) + " has other fields in its messages of type '" + record.name
                + "' than " + Files.shown(first.path) + ", expected the same in all");
        }
    }

    private static String checksum(String text) {
        long hash = Xxh3.hash((text + "}").getBytes(StandardCharsets.UTF_8));
        String digits = Long.toHexString(hash);
        return "0000000000000000".substring(digits.length()) + digits;
    }

    /** Return JSON without white space between tokens. */
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

    /** Return the key of a topic in a feed with channels; as blackbox/feed/routing/key_rule.py. */
    byte channelKey(byte[] topic) {
        return (byte) (1 + (hashOfRoot(topic) >> 16) % channels);
    }

    /** Return true if all topics that begin with a prefix have one root; `whole`: it is all of a symbol or topic. */
    boolean fixesRoot(byte[] prefix, boolean whole) {
        return whole || symbolRule.rootOf(prefix) < prefix.length;
    }

    private long hashOfRoot(byte[] topic) {
        CRC32 crc = new CRC32();
        crc.update(topic, 0, symbolRule.rootOf(topic));
        return crc.getValue();
    }

    /** Return true if topics that begin with a prefix can be in a slice; `whole`: it is all of a symbol or topic. */
    boolean mayHold(int slice, byte[] prefix, boolean whole) {
        if (routing == null) {
            return true;
        }
        JsonNode share = Json.of(Json.of(routing, slice), "share");
        if (share != null && !share.isNull()) {
            if (!fixesRoot(prefix, whole)) {
                return true;
            }
            return hashOfRoot(prefix) % Json.of(share, 1).asInt() == Json.of(share, 0).asInt();
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
}
