import Test.LatencyPOA;
import Test.Oops;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardCopyOption;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.concurrent.locks.LockSupport;
import org.omg.CORBA.CompletionStatus;
import org.omg.CORBA.NO_PERMISSION;
import org.omg.CORBA.ORB;
import org.omg.CORBA.Policy;
import org.omg.PortableServer.IdAssignmentPolicyValue;
import org.omg.PortableServer.LifespanPolicyValue;
import org.omg.PortableServer.POA;
import org.omg.PortableServer.POAHelper;

/**
 * A server of the object in latency.idl on a Java ORB, which the system properties choose, as they do the port.
 *
 * <pre>Server [--name NAME] [--key KEY] [--ior FILE] [--sleep US]</pre>
 *
 * Says "ready IOR" on standard error when it answers. KEY is the object's id in a persistent POA: the object key,
 * which each ORB makes from it in its own way, is the same after a restart on the same port.
 */
public final class Server extends LatencyPOA {
    private final String name;
    private final long sleepMicros;
    private final AtomicInteger notes = new AtomicInteger();

    private Server(String name, long sleepMicros) {
        this.name = name;
        this.sleepMicros = sleepMicros;
    }

    public static void main(String[] words) throws Exception {
        String name = "member";
        String key = "Latency";
        String ior = null;
        long sleepMicros = 0;
        for (int at = 0; at + 1 < words.length; at += 2) {
            String value = words[at + 1];
            switch (words[at]) {
                case "--name" -> name = value;
                case "--key" -> key = value;
                case "--ior" -> ior = value;
                case "--sleep" -> sleepMicros = Long.parseLong(value);
                default -> throw new IllegalArgumentException("unknown option " + words[at]);
            }
        }

        ORB orb = ORB.init(new String[0], System.getProperties());
        POA root = POAHelper.narrow(orb.resolve_initial_references("RootPOA"));
        POA poa = root.create_POA("Tests", root.the_POAManager(), new Policy[] {
            root.create_lifespan_policy(LifespanPolicyValue.PERSISTENT),
            root.create_id_assignment_policy(IdAssignmentPolicyValue.USER_ID),
        });
        byte[] id = key.getBytes(StandardCharsets.UTF_8);
        poa.activate_object_with_id(id, new Server(name, sleepMicros));
        root.the_POAManager().activate();
        String reference = orb.object_to_string(poa.id_to_reference(id));
        if (ior != null) {
            // All at once: a reader must not see the half of it.
            Path half = Path.of(ior + ".new");
            Files.writeString(half, reference + "\n");
            Files.move(half, Path.of(ior), StandardCopyOption.ATOMIC_MOVE);
        }
        System.err.println("ready " + reference);
        orb.run();
    }

    private void work() {
        if (sleepMicros > 0) {
            LockSupport.parkNanos(sleepMicros * 1000);
        }
    }

    @Override
    public boolean is_prime(int number) {
        work();
        long n = Integer.toUnsignedLong(number);
        for (long divisor = 2; divisor * divisor <= n; divisor++) {
            if (n % divisor == 0) {
                return false;
            }
        }
        return n > 1;
    }

    @Override
    public String echo(String s) {
        work();
        return s;
    }

    @Override
    public String echo_wide(String s) {
        work();
        return s;
    }

    @Override
    public double half(double x) {
        work();
        return x / 2;
    }

    @Override
    public byte[] blob(byte[] data) {
        work();
        return data;
    }

    @Override
    public void note(int n) {
        notes.incrementAndGet();
    }

    @Override
    public int noted() {
        return notes.get();
    }

    @Override
    public void fail(boolean user) throws Oops {
        if (user) {
            throw new Oops(name);
        }
        throw new NO_PERMISSION(7, CompletionStatus.COMPLETED_NO);
    }

    @Override
    public String who() {
        work();
        return name;
    }
}
