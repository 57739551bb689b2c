package blackbox;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

import org.apache.hadoop.conf.Configuration;

/** Paths of a recording's files. Only this class knows their names, like `blackbox.archive.files.day` in Python. */
final class RecordingPaths {
    private static final String MANIFEST = "manifest.json";
    private static final String CLOSED = "closed.json";
    private static final String NUMBER = "[0-9]{6,9}";
    static final String JOURNAL = ".journal";
    static final String INDEX = ".index";

    private RecordingPaths() {
    }

    static String manifest(String day) {
        return day + "/" + MANIFEST;
    }

    static String closed(String day) {
        return day + "/" + CLOSED;
    }

    static String slice(String day, int slice) {
        return day + "/slice-" + padded(slice, 5);
    }

    static String segment(String slice, int number) {
        return slice + "/" + padded(number, 6) + JOURNAL;
    }

    /** Return the path of a segment's index. */
    static String index(String segment) {
        return segment.substring(0, segment.length() - JOURNAL.length()) + INDEX;
    }

    /** Return the numbers of the segments (JOURNAL) or indexes (INDEX) among a slice's names, ascending. */
    static int[] numbers(String[] names, String suffix) {
        int[] numbers = new int[names.length];
        int count = 0;
        for (int i = 0; i < names.length; i++) {
            String stem = names[i].substring(0, Math.max(0, names[i].length() - suffix.length()));
            if (names[i].endsWith(suffix) && stem.matches(NUMBER)) {
                numbers[count++] = Integer.parseInt(stem);
            }
        }
        int[] found = java.util.Arrays.copyOf(numbers, count);
        java.util.Arrays.sort(found);
        return found;
    }

    /**
     * Return the directories of all days that the user's paths name, each once, in the order of the paths and then of
     * the dates. A path is that of a day, of a feed with its days, of a root with feeds, or a pattern for such.
     */
    static List<String> days(Options options, Configuration settings) throws IOException {
        List<String> days = new ArrayList<String>();
        for (int i = 0; i < options.paths.length; i++) {
            List<String> found = Files.matching(options.paths[i], settings);
            List<String> here = new ArrayList<String>();
            for (int k = 0; k < found.size(); k++) {
                here.addAll(daysBelow((String) found.get(k), settings));
            }
            if (here.isEmpty()) {
                throw Errors.analysis("'" + options.paths[i] + "' "
                    + (found.isEmpty() ? "was not found" : "holds no recorded day")
                    + ", expected a day, or a feed or root with days, of a recording");
            }
            for (int n = 0; n < here.size(); n++) {
                if (!days.contains(here.get(n))) {
                    days.add(here.get(n));
                }
            }
        }
        return days;
    }

    private static List<String> daysBelow(String path, Configuration settings) throws IOException {
        List<String> days = new ArrayList<String>();
        if (isDay(path, settings)) {
            days.add(path);
            return days;
        }
        addDaysIn(path, days, settings);
        if (days.isEmpty()) {
            String[] feeds = Files.names(path, settings);
            for (int i = 0; i < feeds.length; i++) {
                addDaysIn(path + "/" + feeds[i], days, settings);
            }
        }
        return days;
    }

    private static void addDaysIn(String path, List<String> days, Configuration settings) throws IOException {
        String[] names = Files.names(path, settings);
        for (int i = 0; i < names.length; i++) {
            String day = path + "/" + names[i];
            if (isDay(day, settings)) {
                days.add(day);
            }
        }
    }

    private static boolean isDay(String path, Configuration settings) throws IOException {
        return Files.size(manifest(path), settings) >= 0;
    }

    private static String padded(int number, int digits) {
        String text = Integer.toString(number);
        return text.length() >= digits ? text : "0000000000".substring(0, digits - text.length()) + text;
    }
}
