package blackbox.connector;

import java.io.IOException;
import java.util.ArrayList;
import java.util.List;

import org.apache.hadoop.conf.Configuration;
import org.apache.spark.sql.errors.QueryCompilationErrors;
import org.apache.spark.unsafe.Platform;

/** The days that a user's paths stand for: each is a day's directory, or a feed's with its days in it. */
final class Recordings {
    private Recordings() {
    }

    /** The days' directories, each once, in the order of the paths and then of the days. */
    static List<String> directories(Options options, Configuration settings) throws IOException {
        List<String> days = new ArrayList<String>();
        for (int i = 0; i < options.paths.length; i++) {
            List<String> found = Files.matching(options.paths[i], settings);
            if (found.isEmpty()) {
                Platform.throwException(QueryCompilationErrors.dataPathNotExistError(options.paths[i]));
            }
            for (int k = 0; k < found.size(); k++) {
                String path = (String) found.get(k);
                List<String> here = daysIn(path, settings);
                if (here.isEmpty() && found.size() == 1) {
                    throw new IllegalArgumentException(
                        "'" + path + "' is not a recording: neither it nor what is in it has a " + Day.MANIFEST);
                }
                for (int n = 0; n < here.size(); n++) {
                    if (!days.contains(here.get(n))) {
                        days.add(here.get(n));
                    }
                }
            }
        }
        return days;
    }

    private static List<String> daysIn(String path, Configuration settings) throws IOException {
        List<String> days = new ArrayList<String>();
        if (Files.size(path + "/" + Day.MANIFEST, settings) >= 0) {
            days.add(path);
            return days;
        }
        String[] names = Files.names(path, settings);
        for (int i = 0; i < names.length; i++) {
            String day = path + "/" + names[i];
            if (Files.size(day + "/" + Day.MANIFEST, settings) >= 0) {
                days.add(day);
            }
        }
        return days;
    }
}
