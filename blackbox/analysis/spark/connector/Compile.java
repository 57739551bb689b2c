import java.io.File;

import org.codehaus.janino.ClassLoaderIClassLoader;
import org.codehaus.janino.Compiler;

/** Run by Janino itself: compiles the other sources with it, against the classes of this process. */
public final class Compile {
    private Compile() {
    }

    /** The first argument is the directory for the classes, the others are sources. */
    public static void main(String[] arguments) throws Exception {
        Compiler compiler = new Compiler();
        compiler.setIClassLoader(new ClassLoaderIClassLoader(ClassLoader.getSystemClassLoader()));
        compiler.setDestinationDirectory(new File(arguments[0]), false);
        compiler.setSourceVersion(17);
        compiler.setTargetVersion(17);
        compiler.setDebugLines(true);
        compiler.setDebugSource(true);
        File[] sources = new File[arguments.length - 1];
        for (int i = 0; i < sources.length; i++) {
            sources[i] = new File(arguments[i + 1]);
        }
        compiler.compile(sources);
    }
}
