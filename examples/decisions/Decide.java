// The decision service from Java 11 or later, without a library: java Decide.java http://127.0.0.1:9096 whatsapp 5
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpResponse;
import java.time.Duration;
import java.util.List;
import java.util.concurrent.ThreadLocalRandom;
import java.util.regex.Matcher;
import java.util.regex.Pattern;

public class Decide {
    static final HttpClient HTTP = HttpClient.newBuilder().connectTimeout(Duration.ofMillis(250)).build();

    /** How long to wait before the next attempt, or null: do not try again. */
    static Duration again(String service, String target, int priority, int attempt, int httpStatus, double latencyMs) throws InterruptedException {
        String body = String.format(java.util.Locale.ROOT,
            "{\"target\":\"%s\",\"priority\":%d,\"attempt\":%d,\"error\":{\"http_status\":%d},\"latency_ms\":%.3f}",
            target, priority, attempt, httpStatus, latencyMs);
        HttpRequest.Builder request = HttpRequest.newBuilder(URI.create(service + "/cortex.v1.DecisionService/Decide"))
            .timeout(Duration.ofMillis(250)).header("Content-Type", "application/json").POST(HttpRequest.BodyPublishers.ofString(body));
        String token = System.getenv("CORTEX_TOKEN");
        if (token != null) {
            request.header("Authorization", "Bearer " + token);
        }
        try {
            HttpResponse<String> answer = HTTP.send(request.build(), HttpResponse.BodyHandlers.ofString());
            if (answer.statusCode() == 400 || answer.statusCode() == 404) { // a mistake of this program
                throw new IllegalArgumentException(answer.body());
            }
            if (answer.statusCode() == 200) { // a program with a JSON library uses that
                return answer.body().matches("(?s).*\"retry\":\\s*true.*") ? Duration.ofMillis(number(answer.body(), "delay_ms")) : null;
            }
            if (answer.statusCode() == 401 || answer.statusCode() == 403) { // no reason to stop, but somebody has to know
                System.err.println("CORTEX does not let this program in, which goes on without it: " + answer.body().trim());
            }
        } catch (java.io.IOException e) {
            // The service is gone: plain jittered backoff.
        }
        boolean useful = httpStatus >= 500 ? !List.of(501, 505, 506, 508, 510).contains(httpStatus) : List.of(408, 425, 429).contains(httpStatus);
        if (attempt >= 3 || !useful) {
            return null;
        }
        return Duration.ofMillis(ThreadLocalRandom.current().nextLong(Math.min(30_000L, 500L << attempt)));
    }

    static long number(String json, String field) {
        Matcher m = Pattern.compile("\"" + field + "\":\\s*([0-9]+)").matcher(json);
        return m.find() ? Long.parseLong(m.group(1)) : 0;
    }

    public static void main(String[] args) throws Exception {
        if (args.length < 3) {
            System.err.println("usage: java Decide.java http://127.0.0.1:9096 TARGET PRIORITY [HTTP_STATUS]");
            System.exit(2);
        }
        Duration wait = again(args[0], args[1], Integer.parseInt(args[2]), 0, args.length > 3 ? Integer.parseInt(args[3]) : 503, 12.5);
        System.out.println(wait == null ? "not again" : "again in " + wait.toMillis() + " ms");
    }
}
