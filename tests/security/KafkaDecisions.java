import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.util.List;
import java.util.Map;
import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;
import org.apache.kafka.server.authorizer.AuthorizationResult;

/** Reads worlds of rules and questions, as test_acls.py writes them; prints 1 or 0 for each question. */
public class KafkaDecisions {
    record Context(KafkaPrincipal principal, InetAddress clientAddress) implements AuthorizableRequestContext {
        public String listenerName() { return "PLAINTEXT"; }
        public SecurityProtocol securityProtocol() { return SecurityProtocol.PLAINTEXT; }
        public int requestType() { return 0; }
        public int requestVersion() { return 0; }
        public String clientId() { return "client"; }
        public int correlationId() { return 1; }
    }

    static Context context(String[] fields) throws Exception {
        String[] principal = fields[1].split(":", 2);
        return new Context(new KafkaPrincipal(principal[0], principal[1]), InetAddress.getByName(fields[2]));
    }

    static byte code(String text) { return Byte.parseByte(text); }

    public static void main(String[] arguments) throws Exception {
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        StandardAuthorizer authorizer = null;
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] f = line.split("\t", -1);
            AuthorizationResult result;
            switch (f[0]) {
                case "world" -> {
                    authorizer = new StandardAuthorizer();
                    authorizer.configure(Map.of(
                        "node.id", 1, "super.users", f[1], "allow.everyone.if.no.acl.found", f[2]));
                    authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
                    authorizer.completeInitialLoad();
                }
                case "rule" -> authorizer.addAcl(Uuid.randomUuid(), new StandardAcl(
                    ResourceType.fromCode(code(f[1])), f[2], PatternType.fromCode(code(f[3])), f[4], f[5],
                    AclOperation.fromCode(code(f[6])), AclPermissionType.fromCode(code(f[7]))));
                case "may" -> {
                    ResourcePattern resource =
                        new ResourcePattern(ResourceType.fromCode(code(f[4])), f[5], PatternType.LITERAL);
                    Action action = new Action(AclOperation.fromCode(code(f[3])), resource, 1, true, true);
                    result = authorizer.authorize(context(f), List.of(action)).get(0);
                    System.out.println(result == AuthorizationResult.ALLOWED ? "1" : "0");
                }
                case "may any" -> {
                    result = authorizer.authorizeByResourceType(
                        context(f), AclOperation.fromCode(code(f[3])), ResourceType.fromCode(code(f[4])));
                    System.out.println(result == AuthorizationResult.ALLOWED ? "1" : "0");
                }
            }
        }
    }
}
