import io.debezium.embedded.Connect;
import io.debezium.engine.DebeziumEngine;
import io.debezium.engine.RecordChangeEvent;
import io.debezium.engine.format.ChangeEventFormat;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.Executors;
import org.apache.kafka.connect.source.SourceRecord;

/**
 * Captures events of one collection with Debezium's engine and hands them to a handler that does nothing.
 *
 * Arguments: MongoDB URI, database, collection, operation time to start from, number of events. The last line of its output is the number of
 * events per second after the first third, so that the compiler of the JVM has had its time.
 */
public final class Capture {
    public static void main(String[] arguments) throws Exception {
        String database = arguments[1];
        long wanted = Long.parseLong(arguments[4]);
        Properties properties = new Properties();
        properties.setProperty("name", "capture");
        properties.setProperty("connector.class", "io.debezium.connector.mongodb.MongoDbConnector");
        properties.setProperty("mongodb.connection.string", arguments[0]);
        properties.setProperty("topic.prefix", "bench");
        properties.setProperty("database.include.list", database);
        properties.setProperty("collection.include.list", database + "." + arguments[2]);
        // As the pod: only this collection, on the server's side.
        properties.setProperty("capture.scope", "collection");
        properties.setProperty("capture.target", database + "." + arguments[2]);
        properties.setProperty("capture.mode", "change_streams");
        properties.setProperty("capture.start.op.time", arguments[3]);
        properties.setProperty("snapshot.mode", "no_data");
        properties.setProperty("offset.storage", "org.apache.kafka.connect.storage.MemoryOffsetBackingStore");
        properties.setProperty("offset.flush.interval.ms", "1000");
        properties.setProperty("tombstones.on.delete", "false");
        properties.setProperty("max.batch.size", "8192");
        properties.setProperty("max.queue.size", "32768");
        properties.setProperty("poll.interval.ms", "10");

        CountDownLatch done = new CountDownLatch(1);
        Counter counter = new Counter(wanted, done);
        DebeziumEngine<RecordChangeEvent<SourceRecord>> engine = DebeziumEngine
            .create(ChangeEventFormat.of(Connect.class))
            .using(properties)
            .using((boolean success, String message, Throwable error) -> {
                if (!success) {
                    System.err.println("the engine failed: " + message);
                    System.exit(1);
                }
            })
            .notifying(counter)
            .build();
        Executors.newSingleThreadExecutor().execute(engine);
        done.await();
        System.out.printf("%.1f%n", counter.rate());
        System.out.flush();
        // Closing the engine may take seconds and is not measured.
        Runtime.getRuntime().halt(0);
    }

    /** Counts, and commits the last record of a batch only: its offset covers the others. */
    private static final class Counter implements DebeziumEngine.ChangeConsumer<RecordChangeEvent<SourceRecord>> {
        private final long wanted;
        private final CountDownLatch done;
        private long warm;
        private long warmCount;
        private long last;
        private long count;

        Counter(long wanted, CountDownLatch done) {
            this.wanted = wanted;
            this.done = done;
        }

        @Override
        public void handleBatch(
            List<RecordChangeEvent<SourceRecord>> records,
            DebeziumEngine.RecordCommitter<RecordChangeEvent<SourceRecord>> committer
        ) throws InterruptedException {
            last = System.nanoTime();
            count += records.size();
            if (warmCount == 0 && count >= wanted / 3) {
                warm = last;
                warmCount = count;
            }
            committer.markProcessed(records.get(records.size() - 1));
            committer.markBatchFinished();
            if (count >= wanted) {
                done.countDown();
            }
        }

        double rate() {
            return (count - warmCount) * 1e9 / (last - warm);
        }
    }
}
