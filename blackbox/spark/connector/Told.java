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

/** What planner or task did, told in a file of the directory that option `metrics` names, as `metrics.py` does. */
final class Told {
    private final Map<String, Object> counts = new LinkedHashMap<String, Object>();

    Told and(String name, long count) {
        counts.put(name, Long.valueOf(count));
        return this;
    }

    Told and(String name, String text) {
        counts.put(name, text);
        return this;
    }

    /** Write `what`-unique.json, whole or not at all; the directory is made if it is not there. */
    void write(String directory, String what) throws IOException {
        Path place = new java.io.File(Files.plain(directory)).toPath();
        java.nio.file.Files.createDirectories(place, new FileAttribute[0]);
        String name = what + "-" + UUID.randomUUID().toString().replace("-", "");
        Path draft = place.resolve("." + name);
        byte[] text = new ObjectMapper().writeValueAsString(counts).getBytes(StandardCharsets.UTF_8);
        java.nio.file.Files.write(draft, text, new OpenOption[0]);
        java.nio.file.Files.move(draft, place.resolve(name + ".json"), new CopyOption[] {StandardCopyOption.ATOMIC_MOVE});
    }
}
