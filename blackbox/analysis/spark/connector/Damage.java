package blackbox;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.NoSuchFileException;

/** A part of a recording that cannot be read. */
final class Damage extends IOException {
    static final String NO_RECORD = "no good record begins here";
    static final String CUT = "the segment ends before the last records in its index";

    /** Appended to every message that ends a query. */
    static final String MORE = "; onDamage=skip reads the rest";

    private Damage(String text) {
        super(text);
    }

    /** Describe the damage by file, place and loss, in the words of `blackbox.archive.files.segment.Damage`. */
    static String text(String path, String what, long offset, long size, long messages) {
        String lost = messages > 0 ? ", " + messages + " messages" : "";
        return Files.shown(path) + ": " + what + " (" + size + " bytes at " + offset + lost + ")";
    }

    /** Return the error for a segment that existed when the query was planned and cannot be opened now. */
    static IOException unreadable(String path, IOException error) {
        boolean gone = error instanceof NoSuchFileException || error instanceof FileNotFoundException;
        String why = gone ? "No such file or directory" : error.getMessage();
        return new IOException("segment " + Files.shown(path) + " cannot be read: " + why, error);
    }

    static Damage of(String text) {
        return new Damage(text + MORE);
    }
}
