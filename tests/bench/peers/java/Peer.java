import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.locks.Lock;
import org.redisson.Redisson;
import org.redisson.api.RPermitExpirableSemaphore;
import org.redisson.api.RedissonClient;
import org.redisson.config.Config;

/**
 * Locks of Redisson, as a program of the benchmark: lines of JSON in on stdin, and out on stdout.
 *
 * <p>The first line is the job. The answer is {"ready": true}. Then orders: {"begin_ns", "until_ns"} is answered with
 * all turns, {"pairs"} with how long so many uncontended pairs took. It ends when stdin is closed.
 */
public final class Peer {
    private static final ObjectMapper JSON = new ObjectMapper();
    private static final long LEASE_SECONDS = 10;

    /** One worker's lock. */
    private interface Locker {
        void acquire() throws Exception;

        void release() throws Exception;
    }

    private record Turns(List<long[]> turns, String failed) {}

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        JsonNode job = JSON.readTree(lines.readLine());
        Config config = new Config();
        config.useSingleServer().setAddress(job.get("urls").get(0).asText());
        RedissonClient client = Redisson.create(config);
        int count = job.get("threads").asInt();
        ExecutorService threads = Executors.newFixedThreadPool(count);
        List<Locker> lockers = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            lockers.add(lockerOf(client, job.get("contestant").asText(), job.get("name").asText()));
        }
        takePairs(lockers.get(0), 1); // connected, and its scripts are loaded
        tell(Map.of("ready", true));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            JsonNode order = JSON.readTree(line);
            if (order.has("pairs")) {
                // A thread owns the lock that it takes, so one thread takes all pairs.
                tell(Map.of("ns", takePairs(lockers.get(0), order.get("pairs").asInt())));
            } else {
                tell(takeAllTurns(threads, lockers, job, order));
            }
        }
        System.exit(0);
    }

    private static void tell(Map<String, ?> what) throws Exception {
        System.out.println(JSON.writeValueAsString(what));
        System.out.flush();
    }

    private static Locker lockerOf(RedissonClient client, String contestant, String name) {
        return switch (contestant) {
            case "Redisson lock (Java)" -> of(client.getLock(name));
            case "Redisson fair lock (Java)" -> of(client.getFairLock(name));
            case "Redisson read lock (Java)" -> of(client.getReadWriteLock(name).readLock());
            case "Redisson permit (Java)" -> ofPermits(client.getPermitExpirableSemaphore(name));
            default -> throw new IllegalArgumentException(contestant);
        };
    }

    private static Locker of(Lock lock) {
        return new Locker() {
            @Override
            public void acquire() {
                lock.lock();
            }

            @Override
            public void release() {
                lock.unlock();
            }
        };
    }

    private static Locker ofPermits(RPermitExpirableSemaphore semaphore) {
        semaphore.trySetPermits(1);
        return new Locker() {
            private String permit;

            @Override
            public void acquire() throws Exception {
                permit = semaphore.acquire(LEASE_SECONDS, TimeUnit.SECONDS);
            }

            @Override
            public void release() {
                semaphore.release(permit);
            }
        };
    }

    private static long takePairs(Locker locker, int count) throws Exception {
        long begin = System.nanoTime();
        for (int i = 0; i < count; i++) {
            locker.acquire();
            locker.release();
        }
        return System.nanoTime() - begin;
    }

    private static Map<String, Object> takeAllTurns(
            ExecutorService threads, List<Locker> lockers, JsonNode job, JsonNode order) throws Exception {
        List<Future<Turns>> all = new ArrayList<>();
        long first = job.get("first_worker").asLong();
        double section = job.get("section_seconds").asDouble();
        for (int i = 0; i < lockers.size(); i++) {
            Locker locker = lockers.get(i);
            long worker = first + i;
            all.add(threads.submit(() -> takeTurns(locker, worker, order, section)));
        }
        List<long[]> together = new ArrayList<>();
        String failed = null;
        for (Future<Turns> one : all) {
            together.addAll(one.get().turns());
            failed = failed == null ? one.get().failed() : failed;
        }
        Map<String, Object> told = new TreeMap<>();
        told.put("turns", together);
        told.put("failed", failed);
        return told;
    }

    /** On Linux, nanoTime is CLOCK_MONOTONIC, as everybody's. */
    private static Turns takeTurns(Locker locker, long worker, JsonNode order, double sectionSeconds) {
        List<long[]> turns = new ArrayList<>();
        try {
            TimeUnit.NANOSECONDS.sleep(order.get("begin_ns").asLong() - System.nanoTime());
            for (long releasing = 0; releasing < order.get("until_ns").asLong(); ) {
                locker.acquire();
                long acquired = System.nanoTime();
                TimeUnit.NANOSECONDS.sleep((long) (sectionSeconds * 1e9));
                releasing = System.nanoTime();
                locker.release();
                turns.add(new long[] {worker, acquired, releasing, 0});
            }
        } catch (Exception error) {
            return new Turns(turns, error.toString());
        }
        return new Turns(turns, null);
    }
}
