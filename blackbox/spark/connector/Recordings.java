package blackbox;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

import org.apache.hadoop.conf.Configuration;

/** The days that a user's paths stand for: of a day, of a feed with its days, of a root with feeds, or patterns. */
final class Recordings {
    private Recordings() {
    }

    /** The days' directories, each once, in the order of the paths and then of the days. */
    static List<String> directories(Options options, Configuration settings) throws IOException {
        List<String> days = new ArrayList<String>();
        for (int i = 0; i < options.paths.length; i++) {
            List<String> found = Files.matching(options.paths[i], settings);
            List<String> here = new ArrayList<String>();
            for (int k = 0; k < found.size(); k++) {
                here.addAll(daysBelow((String) found.get(k), settings));
            }
            if (here.isEmpty()) {
                throw Refused.of("'" + options.paths[i] + "' "
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
        return Files.size(path + "/" + Day.MANIFEST, settings) >= 0;
    }
}
