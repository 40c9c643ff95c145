// The decision service from Dart, for apps and servers: dart run decide.dart http://127.0.0.1:9096 whatsapp 5
import 'dart:async';
import 'dart:convert';
import 'dart:io';
import 'dart:math';

final _http = HttpClient()..connectionTimeout = const Duration(milliseconds: 250);
final _random = Random();

/// How long to wait before the next attempt, or null: do not try again.
Future<Duration?> again(String service, String target, int priority, int attempt, int httpStatus, Duration took, {String? token}) async {
  try {
    final request = await _http.postUrl(Uri.parse('$service/cortex.v1.DecisionService/Decide'));
    request.headers.contentType = ContentType.json;
    if (token != null) request.headers.set('Authorization', 'Bearer $token');
    request.write(jsonEncode({
      'target': target,
      'priority': priority,
      'attempt': attempt,
      'error': {'http_status': httpStatus},
      'latency_ms': took.inMicroseconds / 1000,
    }));
    final answer = await request.close().timeout(const Duration(milliseconds: 250));
    final body = await utf8.decodeStream(answer).timeout(const Duration(milliseconds: 250));
    if (answer.statusCode == 400 || answer.statusCode == 404) throw ArgumentError(body); // a mistake of this program
    if (answer.statusCode == 200) {
      final said = jsonDecode(body) as Map<String, dynamic>;
      return said['retry'] as bool ? Duration(milliseconds: said['delay_ms'] as int) : null;
    }
    if (answer.statusCode == 401 || answer.statusCode == 403) {
      // No reason to stop, but somebody has to know.
      stderr.writeln('CORTEX does not let this program in, which goes on without it: ${body.trim()}');
    }
  } on IOException {
    // The service is gone: plain jittered backoff.
  } on TimeoutException {
    // Likewise.
  } on FormatException {
    // Something else answered, or not to its end.
  }
  final useful = httpStatus >= 500 ? !const [501, 505, 506, 508, 510].contains(httpStatus) : const [408, 425, 429].contains(httpStatus);
  if (attempt >= 3 || !useful) return null;
  return Duration(milliseconds: _random.nextInt(min(30000, 500 << attempt)));
}

Future<void> main(List<String> args) async {
  final wait = await again(args[0], args[1], int.parse(args[2]), 0, 503, const Duration(milliseconds: 12));
  print(wait == null ? 'not again' : 'again in ${wait.inMilliseconds} ms');
  _http.close();
}
