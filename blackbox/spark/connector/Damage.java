package blackbox;

import java.io.IOException;

/** A part of a recording that cannot be read. */
final class Damage extends IOException {
    static final String NO_RECORD = "no good record begins here";
    static final String CUT = "the segment ends before the last records that its index tells of";

    /** What can be done about it. */
    static final String MORE = "; onDamage=skip reads the rest";

    private Damage(String text) {
        super(text);
    }

    /** Names the file, the place and what is lost there, as `blackbox.journal.segment.Damage` does. */
    static String text(String path, String what, long offset, long size, long messages) {
        String lost = messages > 0 ? ", " + messages + " messages" : "";
        return Files.shown(path) + ": " + what + " (" + size + " bytes at " + offset + lost + ")";
    }

    static Damage of(String text) {
        return new Damage(text + MORE);
    }
}
