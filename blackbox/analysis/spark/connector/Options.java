package blackbox;

import java.io.IOException;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.Locale;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.spark.network.util.JavaUtils;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;
import org.apache.spark.unsafe.types.UTF8String;

/** The options of a `load`, checked. Names and meanings are those of blackbox/analysis/spark/options.py. */
final class Options implements Serializable {
    /** The wanted message type; null for raw payloads of all types. */
    final String messageType;
    /** The form of prices: "decimal", "float" or "integer". */
    final String prices;
    /** True if damage is skipped and counted. */
    final boolean skip;
    final boolean checksums;
    /** Most bytes of segments that one task reads. */
    final long partitionBytes;
    final boolean python;
    /** The directory for files of counts; null for none. */
    final String metrics;
    final String[] paths;

    private static final String[] NAMES = {
        "path", "paths", "engine", "messageType", "prices", "onDamage", "checksums", "partitionBytes", "metrics",
        "startingOffsets", "maxBytesPerTrigger"
    };
    /** Most edits between a misspelt option and the one that the error suggests. */
    private static final int NEAR = 3;

    Options(CaseInsensitiveStringMap given) {
        refuseUnknown(given);
        this.python = one(given, "engine", "java", "python");
        this.paths = pathsOf(given);
        this.messageType = given.get("messageType");
        this.prices = oneOf(given, "prices", new String[] {"decimal", "float", "integer"});
        this.skip = one(given, "onDamage", "error", "skip");
        this.checksums = !one(given, "checksums", "true", "false");
        this.partitionBytes = sizeOf(given, "partitionBytes", "64m");
        this.metrics = given.get("metrics");
        if ("".equals(metrics)) {
            throw Errors.analysis("option 'metrics' was '', expected a directory");
        }
        one(given, "startingOffsets", "earliest", "latest");
        sizeOf(given, "maxBytesPerTrigger", "64m");
    }

    private static void refuseUnknown(CaseInsensitiveStringMap given) {
        Object[] keys = given.keySet().toArray();
        for (int i = 0; i < keys.length; i++) {
            String key = (String) keys[i];
            // Options that begin with two underscores are Spark's own.
            boolean known = key.startsWith("__");
            String near = null;
            int least = NEAR + 1;
            for (int k = 0; k < NAMES.length; k++) {
                known |= NAMES[k].equalsIgnoreCase(key);
                UTF8String name = UTF8String.fromString(NAMES[k].toLowerCase(Locale.ROOT));
                int apart = name.levenshteinDistance(UTF8String.fromString(key));
                if (apart < least) {
                    least = apart;
                    near = NAMES[k];
                }
            }
            if (!known) {
                throw Errors.analysis("option was '" + key + "', expected one of: "
                    + String.join(", ", (CharSequence[]) NAMES)
                    + (near == null ? "" : " (did you mean '" + near + "'?)"));
            }
        }
    }

    private static long sizeOf(CaseInsensitiveStringMap given, String name, String usual) {
        String text = given.containsKey(name) ? given.get(name) : usual;
        long size = 0;
        try {
            size = JavaUtils.byteStringAsBytes(text);
        } catch (IllegalArgumentException error) {
            size = 0;
        }
        if (size < 1) {
            throw Errors.analysis(
                "option '" + name + "' was '" + text + "', expected bytes, such as 64m or 67108864");
        }
        return size;
    }

    /** Return true if an option has the value `other`, false for `usual`. Throws for other values. */
    private static boolean one(CaseInsensitiveStringMap given, String name, String usual, String other) {
        return oneOf(given, name, new String[] {usual, other}).equals(other);
    }

    /** Return the value of an option; the first allowed value is the default. Throws for other values. */
    private static String oneOf(CaseInsensitiveStringMap given, String name, String[] values) {
        String value = (given.containsKey(name) ? given.get(name) : values[0]).toLowerCase(Locale.ROOT);
        for (int i = 0; i < values.length; i++) {
            if (value.equals(values[i])) {
                return value;
            }
        }
        throw Errors.analysis("option '" + name + "' was '" + value + "', expected one of: "
            + String.join(", ", (CharSequence[]) values));
    }

    private static String[] pathsOf(CaseInsensitiveStringMap given) {
        List<String> paths = new ArrayList<String>();
        if (given.containsKey("path")) {
            paths.add(given.get("path"));
        }
        if (given.containsKey("paths")) {
            JsonNode several = null;
            try {
                several = new ObjectMapper().readTree(given.get("paths"));
            } catch (IOException error) {
                several = null;
            }
            boolean good = several != null && several.isArray();
            for (int i = 0; good && i < several.size(); i++) {
                good = Json.of(several, i).isTextual();
                paths.add(Json.of(several, i).asText());
            }
            if (!good) {
                throw Errors.analysis("option 'paths' was '" + given.get("paths") + "', expected a JSON list of texts");
            }
        }
        if (paths.isEmpty()) {
            throw Errors.analysis(
                "there was no path, expected load(path), load([path, ...]) or OPTIONS (path '...')");
        }
        return (String[]) paths.toArray(new String[0]);
    }
}
