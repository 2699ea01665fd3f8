import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.concurrent.TimeUnit;
import org.apache.kafka.common.metrics.MetricConfig;
import org.apache.kafka.common.metrics.Quota;
import org.apache.kafka.common.metrics.stats.Rate;
import org.apache.kafka.common.metrics.stats.TokenBucket;

/** Reads what test_rates.py writes: a new rate or bucket, what is recorded; prints what each is after a record. */
public class KafkaRates {
    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        MetricConfig config = null;
        Rate rate = null;
        TokenBucket bucket = null;
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] f = line.split(" ");
            if (f[0].equals("new")) {
                config = new MetricConfig().samples(Integer.parseInt(f[1]))
                    .timeWindow(Integer.parseInt(f[2]), TimeUnit.SECONDS)
                    .quota(Quota.upperBound(Double.parseDouble(f[3])));
                rate = new Rate();
                bucket = new TokenBucket();
            } else {
                long now = Long.parseLong(f[1]);
                double value = Double.parseDouble(f[0]);
                rate.record(config, value, now);
                bucket.record(config, value, now);
                System.out.println(rate.measure(config, now) + " " + rate.windowSize(config, now) + " "
                    + bucket.measure(config, now));
            }
        }
    }
}
