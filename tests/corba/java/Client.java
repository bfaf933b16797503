import Test.Latency;
import Test.LatencyHelper;
import Test.Oops;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Locale;
import org.omg.CORBA.CompletionStatus;
import org.omg.CORBA.ORB;
import org.omg.CORBA.SystemException;

/**
 * A client of the object in latency.idl on a Java ORB, which the system properties choose. Commands, lines and exit
 * codes are those of the client on omniORB: see client.cc.
 *
 * <pre>Client REFERENCE COMMAND... [--threads N] [--interval MS]</pre>
 */
public final class Client {
    private static final int PRIMES = 1000;

    private static volatile boolean failed;

    private final org.omg.CORBA.Object untyped;
    private final Latency object;
    private final int thread;
    private final int intervalMillis;

    private Client(org.omg.CORBA.Object untyped, int thread, int intervalMillis) {
        this.untyped = untyped;
        // Unchecked: narrowing a reference without a type would be a first call of its own.
        this.object = LatencyHelper.unchecked_narrow(untyped);
        this.thread = thread;
        this.intervalMillis = intervalMillis;
    }

    public static void main(String[] argv) throws Exception {
        List<String> words = new ArrayList<>(Arrays.asList(argv));
        int threads = option(words, "--threads", 1);
        int interval = option(words, "--interval", 100);
        String reference = words.remove(0);
        if (reference.startsWith("file:")) {
            reference = Files.readString(Path.of(reference.substring(5))).trim();
        }
        ORB orb = ORB.init(new String[0], System.getProperties());
        org.omg.CORBA.Object untyped = orb.string_to_object(reference);
        List<Thread> running = new ArrayList<>();
        for (int number = 0; number < threads; number++) {
            Client client = new Client(untyped, number, interval);
            Thread thread = new Thread(() -> client.run(words));
            thread.start();
            running.add(thread);
        }
        for (Thread thread : running) {
            thread.join();
        }
        System.out.println("done");
        System.out.flush();
        // Threads of the ORB would keep the process.
        Runtime.getRuntime().halt(failed ? 1 : 0);
    }

    private static int option(List<String> words, String name, int otherwise) {
        int at = words.indexOf(name);
        if (at < 0) {
            return otherwise;
        }
        words.remove(at);
        return Integer.parseInt(words.remove(at));
    }

    private interface Call {
        String make() throws Oops;
    }

    private void run(List<String> words) {
        for (int at = 0; at < words.size(); at++) {
            String command = words.get(at);
            String value = at + 1 < words.size() ? words.get(at + 1) : "";
            boolean takesValue = true;
            switch (command) {
                case "call" -> {
                    boolean fixed = at + 2 < words.size() && words.get(at + 2).matches("\\d+");
                    int number = fixed ? Integer.parseInt(words.get(at + 2)) : 0;
                    expect(command, () -> calls(Integer.parseInt(value), number));
                    at += fixed ? 1 : 0;
                }
                case "echo" -> expect(command, () -> echo(Integer.parseInt(value)));
                case "half" -> expect(command, () -> half(Double.parseDouble(value)));
                case "blob" -> expect(command, () -> blob(Integer.parseInt(value)));
                case "note" -> expect(command, () -> note(Integer.parseInt(value)));
                case "fail" -> attempt(command, () -> {
                    object.fail(value.equals("user"));
                    return check(false, "no exception");
                });
                case "loop" -> loop(Double.parseDouble(value));
                default -> takesValue = false;
            }
            if (takesValue) {
                at++;
                continue;
            }
            switch (command) {
                case "who" -> expect(command, this::who);
                case "wide" -> expect(command, this::wide);
                case "noted" -> {
                    boolean waits = value.matches("\\d+");
                    expect(command, () -> noted(waits ? Integer.parseInt(value) : 0));
                    at += waits ? 1 : 0;
                }
                case "is_a" -> expect(command, () -> check(untyped._is_a("IDL:Test/Latency:1.0"), "yes"));
                case "locate" -> expect(command, () -> check(!object._non_existent(), "there"));
                default -> throw new IllegalArgumentException("unknown command " + command);
            }
        }
    }

    private String who() {
        return "who=" + object.who();
    }

    private String calls(int count, int fixed) {
        long[] times = new long[count];
        boolean right = true;
        for (int n = 0; n < count; n++) {
            int number = fixed > 0 ? fixed : 2 + n % PRIMES;
            long begin = System.nanoTime();
            boolean prime = object.is_prime(number);
            times[n] = System.nanoTime() - begin;
            right &= fixed > 0 || prime == java.math.BigInteger.valueOf(number).isProbablePrime(30);
        }
        Arrays.sort(times);
        return check(right, String.format(Locale.ROOT, "calls=%d mean_us=%.1f p50_us=%.1f p99_us=%.1f", count,
            Arrays.stream(times).average().orElse(0) / 1e3, times[count / 2] / 1e3, times[count * 99 / 100] / 1e3));
    }

    private String echo(int count) {
        boolean right = true;
        for (int n = 0; n < count; n++) {
            String text = "thread " + thread + " call " + n;
            right &= text.equals(object.echo(text));
        }
        return check(right, "echoes=" + count);
    }

    private String wide() {
        String text = "\u017elu\u0165ou\u010dk\u00fd k\u016f\u0148 \u6c34";
        return check(text.equals(object.echo_wide(text)), "characters=" + text.length());
    }

    private String half(double x) {
        double back = object.half(x);
        return check(back == x / 2, "value=" + back);
    }

    private String blob(int size) {
        byte[] data = new byte[size];
        for (int at = 0; at < size; at++) {
            data[at] = (byte) (at * 0x9e3779b1 >>> 13);
        }
        return check(Arrays.equals(data, object.blob(data)), "bytes=" + size);
    }

    private String note(int count) {
        for (int n = 0; n < count; n++) {
            object.note(n);
        }
        return "sent=" + count;
    }

    private String noted(int least) {
        long end = System.nanoTime() + 10_000_000_000L;
        int count;
        while ((count = object.noted()) < least && System.nanoTime() < end) {
            pause(5);
        }
        return "noted=" + count;
    }

    private static void pause(int millis) {
        try {
            Thread.sleep(millis);
        } catch (InterruptedException e) {
            Thread.currentThread().interrupt();
        }
    }

    private void loop(double seconds) {
        long end = System.nanoTime() + (long) (seconds * 1e9);
        do {
            attempt("loop", this::who);
            pause(intervalMillis);
        } while (System.nanoTime() < end);
    }

    private static String check(boolean right, String said) {
        failed |= !right;
        return right ? said : "WRONG " + said;
    }

    private void expect(String what, Call call) {
        failed |= !attempt(what, call);
    }

    private boolean attempt(String what, Call call) {
        long begin = System.nanoTime();
        String said;
        boolean good = false;
        try {
            said = call.make();
            good = true;
        } catch (Oops oops) {
            said = "exception=Oops why=" + oops.why;
        } catch (SystemException e) {
            String name = e.getClass().getSimpleName();
            String completed = switch (e.completed.value()) {
                case CompletionStatus._COMPLETED_YES -> "YES";
                case CompletionStatus._COMPLETED_NO -> "NO";
                default -> "MAYBE";
            };
            said = String.format("exception=%s minor=0x%x completed=%s", name, e.minor, completed);
        } catch (RuntimeException e) {
            // Some ORBs throw them at what they do not expect.
            said = "exception=" + e.getClass().getSimpleName();
        }
        long micros = (System.nanoTime() - begin) / 1000;
        System.out.println("thread=" + thread + " " + what + " " + said + " us=" + micros);
        return good;
    }
}
