package blackbox;

import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.nio.file.CopyOption;
import java.nio.file.OpenOption;
import java.nio.file.attribute.FileAttribute;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.UUID;

import com.fasterxml.jackson.databind.ObjectMapper;

/** A JSON file of counts that a planner or a task writes to the directory of option `metrics`; see metrics.py. */
final class MetricsFile {
    private final Map<String, Object> counts = new LinkedHashMap<String, Object>();

    MetricsFile and(String name, long count) {
        counts.put(name, Long.valueOf(count));
        return this;
    }

    MetricsFile and(String name, String text) {
        counts.put(name, text);
        return this;
    }

    /** Write `what`-unique.json atomically; create the directory if it is missing. */
    void write(String directory, String what) throws IOException {
        Path place = new java.io.File(Files.plain(directory)).toPath();
        java.nio.file.Files.createDirectories(place, new FileAttribute[0]);
        String name = what + "-" + UUID.randomUUID().toString().replace("-", "");
        Path draft = place.resolve("." + name);
        byte[] text = new ObjectMapper().writeValueAsString(counts).getBytes(StandardCharsets.UTF_8);
        java.nio.file.Files.write(draft, text, new OpenOption[0]);
        CopyOption[] atomically = {StandardCopyOption.ATOMIC_MOVE};
        java.nio.file.Files.move(draft, place.resolve(name + ".json"), atomically);
    }
}
