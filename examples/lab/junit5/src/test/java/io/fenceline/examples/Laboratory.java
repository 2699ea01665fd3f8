package io.fenceline.examples;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.io.IOException;
import java.io.InputStream;
import java.io.UncheckedIOException;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.HashMap;
import java.util.Map;
import org.junit.jupiter.api.extension.AfterAllCallback;
import org.junit.jupiter.api.extension.AfterEachCallback;
import org.junit.jupiter.api.extension.BeforeAllCallback;
import org.junit.jupiter.api.extension.ExtensionContext;

/** A cluster of Fenceline's laboratory for the tests of a class. Faults end with each test; the cluster ends with the
 * class, or with this JVM, however it ends. Needs a running {@code fenceline lab}. */
final class Laboratory implements BeforeAllCallback, AfterEachCallback, AfterAllCallback {
    private static final String ADDRESS = System.getenv().getOrDefault("FENCELINE_LAB", "http://127.0.0.1:8090");
    private static final ObjectMapper JSON = new ObjectMapper();

    private final HttpClient http = HttpClient.newHttpClient();
    private final int nodes;
    private JsonNode cluster;
    private InputStream lease;

    Laboratory(int nodes) {
        this.nodes = nodes;
    }

    @Override
    public void beforeAll(ExtensionContext context) throws Exception {
        cluster = send("POST", "/v1/clusters", Map.of("nodes", nodes));
        // The cluster ends as soon as this request does.
        HttpRequest hold = HttpRequest.newBuilder(URI.create(ADDRESS + path("/lease"))).build();
        lease = http.send(hold, BodyHandlers.ofInputStream()).body();
    }

    @Override
    public void afterEach(ExtensionContext context) {
        if (context.getExecutionException().isPresent()) {
            send("GET", path("/timeline"), null).get("events").forEach(event -> System.err.println(event.get("text").asText()));
        }
        send("DELETE", path("/faults"), null);
    }

    @Override
    public void afterAll(ExtensionContext context) throws IOException {
        send("DELETE", path(""), null);
        lease.close();
    }

    /** Settings for Kafka's Java clients, with the given ones. */
    Map<String, Object> settings(Map<String, Object> more) {
        Map<String, Object> all = new HashMap<>();
        cluster.at("/client_settings/java").fields().forEachRemaining(it -> all.put(it.getKey(), it.getValue().asText()));
        all.putAll(more);
        return all;
    }

    /** A new topic. */
    String topic() {
        return send("POST", path("/topics"), Map.of()).get("name").asText();
    }

    JsonNode fault(String kind, Map<String, Object> arguments) {
        Map<String, Object> body = new HashMap<>(arguments);
        body.put("kind", kind);
        return send("POST", path("/faults"), body);
    }

    /** Make a situation true; what it returns is described on the laboratory's page. */
    JsonNode situation(String name, Map<String, Object> arguments) {
        return send("POST", path("/situations/" + name), arguments);
    }

    private String path(String rest) {
        return "/v1/clusters/" + cluster.get("id").asText() + rest;
    }

    private JsonNode send(String method, String path, Map<String, Object> body) {
        try {
            HttpRequest request = HttpRequest.newBuilder(URI.create(ADDRESS + path))
                .header("Content-Type", "application/json")
                .method(method, body == null ? BodyPublishers.noBody() : BodyPublishers.ofString(JSON.writeValueAsString(body)))
                .build();
            HttpResponse<String> response = http.send(request, BodyHandlers.ofString());
            if (response.statusCode() >= 400) {
                throw new IllegalStateException(method + " " + path + ": " + response.body());
            }
            return JSON.readTree(response.body());
        } catch (IOException e) {
            throw new UncheckedIOException("Is `fenceline lab` running on " + ADDRESS + "?", e);
        } catch (InterruptedException e) {
            throw new IllegalStateException(e);
        }
    }
}
