package io.fenceline.examples;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.fasterxml.jackson.databind.JsonNode;
import java.time.Duration;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.Future;
import java.util.stream.IntStream;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.LogTruncationException;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.extension.RegisterExtension;

@Timeout(90)
class LostRecordsTest {
    @RegisterExtension
    static final Laboratory lab = new Laboratory(3);

    /** An application that keeps offset and leader epoch in its own database learns that the log has changed below it. */
    @Test
    void aConsumerNoticesATruncation() throws Exception {
        String topic = lab.topic();
        produce(topic, "kept", 10);
        JsonNode made = lab.situation("truncation_and_growth", Map.of("topic", topic, "lose", 20, "grow", 40));
        TopicPartition partition = new TopicPartition(topic, 0);
        try (KafkaConsumer<String, String> consumer = consumer(Map.of("auto.offset.reset", "none"))) {
            consumer.assign(List.of(partition));
            // As if it had read the records that are lost now: the offset exists again, in another history.
            consumer.seek(partition, new OffsetAndMetadata(25, Optional.of(made.get("old_epoch").asInt()), ""));
            LogTruncationException lost = assertThrows(LogTruncationException.class, () -> pollForever(consumer));
            assertEquals(made.get("divergent_offset").asLong(), lost.divergentOffsets().get(partition).offset());
        }
    }

    /** What the log has acknowledged and not lost itself is processed, whatever happens to leaders. */
    @Test
    void itProcessesAtLeastOnceOverAnUncleanElection() throws Exception {
        String topic = lab.topic();
        Application application = new Application(topic);
        Thread running = new Thread(application);
        running.start();
        try {
            Set<String> expected = new HashSet<>(produce(topic, "before", 100));
            JsonNode made = lab.situation("unclean_election", Map.of("topic", topic, "lose", 20, "then_write", 5));
            assertEquals(20, made.get("lost").size());
            made.get("lost").forEach(each -> expected.remove(each.at("/value/text").asText()));
            expected.addAll(produce(topic, "after", 100));
            while (!application.processed.containsAll(expected) && running.isAlive()) {
                Thread.sleep(20);
            }
            assertTrue(application.processed.containsAll(expected), "the application ended early");
        } finally {
            application.isStopped = true;
            running.join();
        }
    }

    /** The application under test: commits after it has processed, and continues where histories diverge. */
    private static final class Application implements Runnable {
        final Set<String> processed = ConcurrentHashMap.newKeySet();
        volatile boolean isStopped;
        private final String topic;

        Application(String topic) {
            this.topic = topic;
        }

        @Override
        public void run() {
            try (KafkaConsumer<String, String> consumer = consumer(
                Map.of("group.id", "app-" + topic, "auto.offset.reset", "earliest", "enable.auto.commit", false))) {
                consumer.subscribe(List.of(topic));
                while (!isStopped) {
                    try {
                        for (ConsumerRecord<String, String> each : consumer.poll(Duration.ofMillis(100))) {
                            processed.add(each.value());
                        }
                        consumer.commitAsync();
                    } catch (LogTruncationException e) {
                        e.divergentOffsets().forEach((partition, offset) -> consumer.seek(partition, offset));
                    }
                }
            }
        }
    }

    private static KafkaConsumer<String, String> consumer(Map<String, Object> more) {
        return new KafkaConsumer<>(lab.settings(more), new StringDeserializer(), new StringDeserializer());
    }

    private static void pollForever(KafkaConsumer<String, String> consumer) {
        while (true) {
            assertTrue(consumer.poll(Duration.ofMillis(100)).isEmpty(), "records of another history were delivered");
        }
    }

    /** Write records, all acknowledged; their values. */
    private static List<String> produce(String topic, String stem, int count) throws Exception {
        List<String> values = IntStream.range(0, count).mapToObj(number -> stem + "-" + number).toList();
        Map<String, Object> settings = lab.settings(Map.of("acks", "all"));
        try (KafkaProducer<String, String> producer =
            new KafkaProducer<>(settings, new StringSerializer(), new StringSerializer())) {
            List<Future<RecordMetadata>> sent =
                values.stream().map(value -> producer.send(new ProducerRecord<>(topic, value))).toList();
            for (Future<RecordMetadata> each : sent) {
                each.get();
            }
        }
        return values;
    }
}
