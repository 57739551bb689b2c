package blackbox.connector;

import java.io.IOException;
import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.spark.network.util.JavaUtils;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What a user may say beside the paths. Unknown options are left alone, wrong values are errors. */
final class Options implements Serializable {
    /** The message type that is wanted; null: payloads of all types as they are. */
    final String records;
    /** Prices stay integers. */
    final boolean scaled;
    /** Damage is passed over and counted. */
    final boolean skip;
    final boolean checksums;
    /** Of segments, that a task reads at most. */
    final long partitionBytes;
    final boolean python;
    final String[] paths;

    private static final String[] NAMES = {
        "path", "paths", "records", "prices", "onDamage", "checksums", "partitionBytes", "engine", "metrics",
        "startingOffsets", "maxBytesPerTrigger"
    };

    Options(CaseInsensitiveStringMap given) {
        refuseUnknown(given);
        this.records = given.get("records");
        this.scaled = one(given, "prices", "decimal", "long");
        this.skip = one(given, "onDamage", "error", "skip");
        this.checksums = !one(given, "checksums", "true", "false");
        this.python = one(given, "engine", "jvm", "python");
        this.partitionBytes = sizeOf(given);
        this.paths = pathsOf(given);
    }

    private static void refuseUnknown(CaseInsensitiveStringMap given) {
        Object[] keys = given.keySet().toArray();
        for (int i = 0; i < keys.length; i++) {
            String key = (String) keys[i];
            // Those with two lines before them are Spark's own.
            boolean known = key.startsWith("__");
            for (int k = 0; k < NAMES.length; k++) {
                known |= NAMES[k].equalsIgnoreCase(key);
            }
            if (!known) {
                throw new IllegalArgumentException(
                    "option was '" + key + "', expected one of: " + String.join(", ", (CharSequence[]) NAMES));
            }
        }
    }

    private static long sizeOf(CaseInsensitiveStringMap given) {
        String text = given.containsKey("partitionBytes") ? given.get("partitionBytes") : "64m";
        long size = 0;
        try {
            size = JavaUtils.byteStringAsBytes(text);
        } catch (NumberFormatException error) {
            size = 0;
        }
        if (size < 1) {
            throw new IllegalArgumentException(
                "partitionBytes was '" + text + "', expected bytes, such as 64m or 67108864");
        }
        return size;
    }

    /** Whether an option has its other value. */
    private static boolean one(CaseInsensitiveStringMap given, String name, String usual, String other) {
        String value = given.containsKey(name) ? given.get(name) : usual;
        if (!value.equalsIgnoreCase(usual) && !value.equalsIgnoreCase(other)) {
            throw new IllegalArgumentException(
                name + " was '" + value + "', expected '" + usual + "' or '" + other + "'");
        }
        return value.equalsIgnoreCase(other);
    }

    private static String[] pathsOf(CaseInsensitiveStringMap given) {
        List<String> paths = new ArrayList<String>();
        if (given.containsKey("path")) {
            paths.add(given.get("path"));
        }
        if (given.containsKey("paths")) {
            JsonNode several;
            try {
                several = new ObjectMapper().readTree(given.get("paths"));
            } catch (IOException error) {
                throw new IllegalArgumentException("paths was '" + given.get("paths") + "', expected a list in JSON");
            }
            for (int i = 0; i < several.size(); i++) {
                paths.add(Json.of(several, i).asText());
            }
        }
        if (paths.isEmpty()) {
            throw new IllegalArgumentException("no path was given, expected a recording: .load(\"recordings/feed\")");
        }
        return (String[]) paths.toArray(new String[0]);
    }
}
