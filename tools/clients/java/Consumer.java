// A consumer on Kafka's Java client, as its documentation shows it: prints each value.

import java.time.Duration;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicBoolean;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.common.errors.WakeupException;
import org.apache.kafka.common.serialization.StringDeserializer;

public class Consumer {
    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", System.getenv("KAFKA_BOOTSTRAP_SERVERS"));
        settings.put("group.id", System.getenv("KAFKA_GROUP"));
        settings.put("auto.offset.reset", "earliest");
        settings.put("key.deserializer", StringDeserializer.class.getName());
        settings.put("value.deserializer", StringDeserializer.class.getName());
        KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings);
        Thread main = Thread.currentThread();
        AtomicBoolean stopping = new AtomicBoolean();
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            stopping.set(true);
            consumer.wakeup();
            try {
                main.join();
            } catch (InterruptedException ended) {
                Thread.currentThread().interrupt();
            }
        }));
        try {
            consumer.subscribe(List.of(System.getenv("KAFKA_TOPIC")));
            while (true) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    System.out.println(record.value());
                    System.out.flush();
                }
            }
        } catch (WakeupException error) {
            if (!stopping.get()) {
                throw error;
            }
        } finally {
            consumer.close();
        }
    }
}
