package blackbox;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;

import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Path;

/** Lists and measures files: local ones directly, all others through Hadoop. */
final class Files {
    private Files() {
    }

    /** Return true if a path is on a local or mounted file system, which is read without Hadoop. */
    static boolean isLocal(String path) {
        String scheme = new Path(path).toUri().getScheme();
        return scheme == null || scheme.equals("file");
    }

    /** Return a local path without its scheme. */
    static String plain(String path) {
        return new Path(path).toUri().getPath();
    }

    /** Return the path in the form shown in messages. */
    static String shown(String path) {
        return isLocal(path) ? plain(path) : path;
    }

    static FileSystem system(String path, Configuration settings) throws IOException {
        return new Path(path).getFileSystem(settings);
    }

    /** Return the path, with its scheme, if it exists; else all paths that it matches as a pattern, sorted. */
    static List<String> matching(String path, Configuration settings) throws IOException {
        List<String> found = new ArrayList<String>();
        FileSystem files = system(path, settings);
        Path full = files.makeQualified(new Path(path));
        if (files.exists(full)) {
            found.add(full.toString());
            return found;
        }
        FileStatus[] all = files.globStatus(full);
        int count = all == null ? 0 : all.length;
        for (int i = 0; i < count; i++) {
            found.add(all[i].getPath().toString());
        }
        return found;
    }

    /** Return the names in a directory, sorted; none when it does not exist. */
    static String[] names(String directory, Configuration settings) throws IOException {
        String[] names;
        if (isLocal(directory)) {
            names = new java.io.File(plain(directory)).list();
            if (names == null) {
                return new String[0];
            }
        } else {
            FileStatus[] all;
            try {
                all = system(directory, settings).listStatus(new Path(directory));
            } catch (FileNotFoundException gone) {
                return new String[0];
            }
            names = new String[all.length];
            for (int i = 0; i < all.length; i++) {
                names[i] = all[i].getPath().getName();
            }
        }
        Arrays.sort(names);
        return names;
    }

    /** Return false if a local directory does not exist. Other file systems may not keep empty ones. */
    static boolean mayHaveDirectory(String path) {
        return !isLocal(path) || new java.io.File(plain(path)).isDirectory();
    }

    /** Return the size of a file in bytes; -1 when it does not exist. */
    static long size(String path, Configuration settings) throws IOException {
        if (isLocal(path)) {
            java.io.File file = new java.io.File(plain(path));
            return file.isFile() ? file.length() : -1L;
        }
        try {
            return system(path, settings).getFileStatus(new Path(path)).getLen();
        } catch (FileNotFoundException gone) {
            return -1L;
        }
    }
}
