import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.TimeUnit;
import org.redisson.Redisson;
import org.redisson.api.RAtomicLong;
import org.redisson.api.RLock;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Locks of Redisson, driven by lines on stdin: THREAD KIND COMMAND NAME [NUMBER]; KIND is "lock" or "fair".
 *
 * <p>Each thread carries out its commands in their order, and answers each in a line on stdout: THREAD RESULT BEGUN
 * ENDED, where the times are those of nanoTime: on Linux CLOCK_MONOTONIC, as Python's. Ends when stdin is closed.
 *
 * <p>Arguments: the address of the server, and the watchdog's lease in milliseconds.
 */
public final class Driver {
    public static void main(String[] arguments) throws Exception {
        Config config = new Config();
        config.setLockWatchdogTimeout(Long.parseLong(arguments[1]));
        config.useSingleServer().setAddress(arguments[0]);
        RedissonClient client = Redisson.create(config);
        Map<String, ExecutorService> threads = new HashMap<>();
        System.out.println("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            String[] words = line.split(" ");
            threads.computeIfAbsent(words[0], name -> Executors.newSingleThreadExecutor())
                    .execute(() -> answer(client, words));
        }
        System.exit(0);
    }

    private static void answer(RedissonClient client, String[] words) {
        long begun = System.nanoTime();
        String result;
        try {
            result = carryOut(client, words);
        } catch (Exception error) {
            result = error.getClass().getSimpleName();
        }
        String line = String.join(" ", words[0], result, "" + begun, "" + System.nanoTime());
        synchronized (System.out) {
            System.out.println(line);
            System.out.flush();
        }
    }

    private static String carryOut(RedissonClient client, String[] words) throws Exception {
        String name = words[3];
        RLock lock = words[1].equals("fair") ? client.getFairLock(name) : client.getLock(name);
        long number = words.length > 4 ? Long.parseLong(words[4]) : 0;
        switch (words[2]) {
            case "try":
                return "" + lock.tryLock();
            case "wait":
                return "" + lock.tryLock(number, TimeUnit.MILLISECONDS);
            case "lease":
                lock.lock(number, TimeUnit.MILLISECONDS);
                return "true";
            case "lock":
                lock.lock();
                return "true";
            case "unlock":
                lock.unlock();
                return "done";
            case "force":
                return "" + lock.forceUnlock();
            case "count":
                return "" + lock.getHoldCount();
            case "add":
                for (long i = 0; i < number; i++) {
                    addOne(lock, client.getAtomicLong(name + ":counter"));
                }
                return "done";
            default:
                throw new IllegalArgumentException(words[2]);
        }
    }

    /** Reads, and then writes: only the lock keeps others from writing between the two. */
    private static void addOne(RLock lock, RAtomicLong counter) {
        lock.lock();
        try {
            counter.set(counter.get() + 1);
        } finally {
            lock.unlock();
        }
    }
}
