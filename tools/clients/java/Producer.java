// A producer on Kafka's Java client: values from standard input; prints each that is acknowledged.

import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.util.Properties;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.StringSerializer;

public class Producer {
    public static void main(String[] arguments) throws IOException {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", System.getenv("KAFKA_BOOTSTRAP_SERVERS"));
        settings.put("key.serializer", StringSerializer.class.getName());
        settings.put("value.serializer", StringSerializer.class.getName());
        String topic = System.getenv("KAFKA_TOPIC");
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
            String value;
            while ((value = input.readLine()) != null) {
                String sent = value;
                producer.send(new ProducerRecord<>(topic, sent), (metadata, error) -> {
                    if (error == null) {
                        System.out.println(sent);
                        System.out.flush();
                    } else {
                        System.err.println("error: " + sent + ": " + error);
                    }
                });
            }
            producer.flush();
        }
    }
}
