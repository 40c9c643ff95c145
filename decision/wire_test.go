package decision

import (
	"bufio"
	"bytes"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/seed-a29ca62a/cortex"
	pb "github.com/seed-a29ca62a/cortex/decision/decisionpb"
)

// h2c is a client of HTTP/2 in plain text.
func h2c(t *testing.T) *http.Client {
	p := new(http.Protocols)
	p.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: p}
	t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr}
}

// One port, one schema: gRPC, gRPC-Web and Connect, binary and in JSON.
func TestAllProtocols(t *testing.T) {
	w := newWorld(t)
	for name, c := range map[string]pb.DecisionServiceClient{
		"grpc":           pb.NewDecisionServiceClient(h2c(t), w.url, connect.WithGRPC()),
		"grpc json":      pb.NewDecisionServiceClient(h2c(t), w.url, connect.WithGRPC(), connect.WithProtoJSON()),
		"grpc-web":       pb.NewDecisionServiceClient(w.client, w.url, connect.WithGRPCWeb()),
		"connect":        pb.NewDecisionServiceClient(w.client, w.url),
		"connect json":   pb.NewDecisionServiceClient(w.client, w.url, connect.WithProtoJSON()),
		"connect gzip":   pb.NewDecisionServiceClient(w.client, w.url, connect.WithSendGzip()),
		"connect on h2c": pb.NewDecisionServiceClient(h2c(t), w.url),
	} {
		w.add(time.Second) // so that what a watch knows is old
		target := strings.ReplaceAll(name, " ", "-")
		a, err := c.Admit(background, &pb.AdmitRequest{Target: &target, Priority: ptr(int32(5))})
		if err != nil || !a.Allowed || a.TimeoutMs != 1000 {
			t.Errorf("%s: %v %v", name, a, err)
			continue
		}
		d, err := c.Decide(background, &pb.DecideRequest{Target: &target, Priority: ptr(int32(5)), Attempt: ptr(int32(0)), Token: &a.Token,
			Error: &pb.Error{GrpcCode: ptr(int32(14))}})
		if err != nil || !d.Retry || !d.Counted {
			t.Errorf("%s: %v %v", name, d, err)
		}
		_, err = c.Admit(background, &pb.AdmitRequest{Target: &target})
		ce, _ := err.(*connect.Error)
		if connect.CodeOf(err) != connect.CodeInvalidArgument || ce == nil || len(ce.Details()) != 1 {
			t.Errorf("%s: %v", name, err)
		} else if v, _ := ce.Details()[0].Value(); v.(*pb.FieldViolation).Field != "priority" {
			t.Errorf("%s: %v", name, v)
		}
		stream, err := c.Watch(background, &pb.WatchRequest{Targets: []string{target}})
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if !stream.Receive() || stream.Msg().Changes[0].Target != target {
			t.Errorf("%s: %v %v", name, stream.Msg(), stream.Err())
		}
		stream.Close()
	}
}

func TestWhatIsThere(t *testing.T) {
	w := newWorld(t)
	for _, tc := range []struct {
		method, path string
		status       int
		want         string
	}{
		{"GET", "/", 200, "POST /cortex.v1.DecisionService/Admit"},
		{"GET", "/openapi.json", 200, `"openapi": "3.1.0"`},
		{"GET", "/healthz", 200, "ok"},
		{"HEAD", "/", 200, ""},
		{"GET", "/nothing", 404, "GET / lists what there is"},
		{"POST", "/", 405, "This path takes GET, HEAD."},
		{"POST", "/cortex.v1.DecisionService/Admire", 501, "there is no such method"},
		{"GET", "/cortex.v1.DecisionService/Admit", 405, "take POST"},
		{"POST", "/cortex.v1.DecisionService/Watch", 415, "Content-Type: application/connect+json"},
		{"POST", "/cortex.v1.DecisionService/Admit/", 501, "there is no such method"},
	} {
		r, _ := http.NewRequest(tc.method, w.url+tc.path, strings.NewReader(""))
		r.Header.Set("Content-Type", "application/json")
		resp, err := w.client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		b, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != tc.status || !strings.Contains(string(b), tc.want) {
			t.Errorf("%s %s: %d %s", tc.method, tc.path, resp.StatusCode, b)
		}
	}
}

// The description has every method and field of the schema, with the types that its JSON has.
func TestOpenAPIIsTheSchemas(t *testing.T) {
	var doc struct {
		Paths map[string]struct {
			Post struct {
				RequestBody struct {
					Content map[string]struct{ Schema schemaRef }
				}
				Responses map[string]struct {
					Content map[string]struct{ Schema schemaRef }
				}
			}
		}
		Components struct{ Schemas map[string]jsonSchema }
	}
	if err := json.Unmarshal(openAPI, &doc); err != nil {
		t.Fatal(err)
	}
	file := pb.File_cortex_v1_decision_proto
	methods := file.Services().Get(0).Methods()
	if len(doc.Paths) != methods.Len() {
		t.Errorf("%d paths for %d methods", len(doc.Paths), methods.Len())
	}
	for i := range methods.Len() {
		m := methods.Get(i)
		op := doc.Paths["/cortex.v1.DecisionService/"+string(m.Name())].Post
		kind := "application/json"
		if m.IsStreamingServer() {
			kind = "application/connect+json"
		}
		if in := op.RequestBody.Content[kind].Schema.Ref; in != "#/components/schemas/"+string(m.Input().Name()) {
			t.Errorf("%s takes %q", m.Name(), in)
		}
		if out := op.Responses["200"].Content[kind].Schema.Ref; out != "#/components/schemas/"+string(m.Output().Name()) {
			t.Errorf("%s gives %q", m.Name(), out)
		}
	}
	for i := range file.Messages().Len() {
		m := file.Messages().Get(i)
		if m.Name() == "FieldViolation" {
			continue
		}
		s, ok := doc.Components.Schemas[string(m.Name())]
		if !ok || len(s.Properties) != m.Fields().Len() {
			t.Errorf("%s: %d of %d fields", m.Name(), len(s.Properties), m.Fields().Len())
		}
		for j := range m.Fields().Len() {
			f := m.Fields().Get(j)
			p := s.Properties[string(f.Name())]
			if f.IsList() {
				if p.Type != "array" || p.Items == nil {
					t.Errorf("%s is %q", f.FullName(), p.Type)
					continue
				}
				p = *p.Items
			}
			want := map[protoreflect.Kind]string{protoreflect.BoolKind: "boolean", protoreflect.StringKind: "string", protoreflect.Int32Kind: "integer",
				protoreflect.DoubleKind: "number"}[f.Kind()]
			if f.Message() != nil && p.Ref != "#/components/schemas/"+string(f.Message().Name()) || f.Message() == nil && (want == "" || p.Type != want) {
				t.Errorf("%s is %q %q", f.FullName(), p.Type, p.Ref)
			}
		}
	}
	if _, ok := doc.Components.Schemas["ConnectError"]; !ok {
		t.Error("no schema for errors")
	}
}

type schemaRef struct {
	Ref string `json:"$ref"`
}

type jsonSchema struct {
	schemaRef
	Type       string
	Properties map[string]jsonSchema
	Items      *jsonSchema
	Required   []string
}

// The description did not say that a batch needs its reports, nor that all of an answer is there.
func TestOpenAPISaysWhatIsRequired(t *testing.T) {
	var doc struct {
		Info       struct{ Description string }
		Components struct{ Schemas map[string]jsonSchema }
	}
	if err := json.Unmarshal(openAPI, &doc); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(doc.Info.Description, "JSON numbers") {
		t.Errorf("the service is described by %q", doc.Info.Description)
	}
	var fits func(at string, s jsonSchema, v any)
	fits = func(at string, s jsonSchema, v any) {
		if s.Ref != "" {
			s = doc.Components.Schemas[strings.TrimPrefix(s.Ref, "#/components/schemas/")]
		}
		switch v := v.(type) {
		case map[string]any:
			if len(v) != len(s.Properties) || len(v) != len(s.Required) {
				t.Errorf("%s: %d fields, %d described, %d of them required", at, len(v), len(s.Properties), len(s.Required))
			}
			for name, x := range v {
				if _, ok := s.Properties[name]; !ok || !slices.Contains(s.Required, name) {
					t.Errorf("%s.%s is not described, or not required", at, name)
				}
				fits(at+"."+name, s.Properties[name], x)
			}
		case []any:
			for _, x := range v {
				fits(at+"[]", *s.Items, x)
			}
		case float64:
			if s.Type != "number" && (s.Type != "integer" || v != float64(int32(v))) {
				t.Errorf("%s: %v is no %s", at, v, s.Type)
			}
		case string:
			if s.Type != "string" {
				t.Errorf("%s: %q is no %s", at, v, s.Type)
			}
		case bool:
			if s.Type != "boolean" {
				t.Errorf("%s: %v is no %s", at, v, s.Type)
			}
		default:
			t.Errorf("%s: %v", at, v)
		}
	}
	w := newWorld(t)
	for method, body := range map[string]string{
		"Admit":       `{"target":"a","priority":5}`,
		"Report":      `{"target":"a","outcome":"success","latency_ms":1}`,
		"ReportBatch": `{"reports":[{"target":"a","outcome":"success","latency_ms":1}]}`,
		"Decide":      `{"target":"a","priority":5,"attempt":0,"error":{"http_status":503},"latency_ms":1}`,
		"List":        `{}`,
	} {
		w.ask("Admit", `{"target":"a","priority":5}`) // so that there is something to list
		fits(method, doc.Components.Schemas[method+"Response"], w.ask(method, body))
		for _, name := range doc.Components.Schemas[method+"Request"].Required {
			var request map[string]any
			json.Unmarshal([]byte(body), &request)
			if _, ok := request[name]; !ok {
				t.Fatalf("%s.%s is not in %s", method, name, body)
			}
			delete(request, name)
			less, _ := json.Marshal(request)
			if status, out := w.post(method, string(less)); status != 400 || !strings.HasPrefix(out["message"].(string), name+":") {
				t.Errorf("%s without %s: %d %v", method, name, status, out)
			}
		}
	}
	if !slices.Equal(doc.Components.Schemas["ReportBatchRequest"].Required, []string{"reports"}) {
		t.Error("a batch is described as one that needs no reports")
	}
}

var fieldLine = regexp.MustCompile(`(?m)^  [a-zA-Z].* = [0-9]+;`)

// The generated files are those of the schema.
func TestGeneratedCodeIsOfThisSchema(t *testing.T) {
	src, err := os.ReadFile("../proto/cortex/v1/decision.proto")
	if err != nil {
		t.Fatal(err)
	}
	file := pb.File_cortex_v1_decision_proto
	for i := range file.Messages().Len() {
		m := file.Messages().Get(i)
		_, body, ok := bytes.Cut(src, []byte("message "+string(m.Name())+" {"))
		if !ok {
			t.Errorf("%s is not in the schema", m.Name())
			continue
		}
		body, _, _ = bytes.Cut(body, []byte("\n}"))
		if n := len(fieldLine.FindAll(body, -1)); n != m.Fields().Len() {
			t.Errorf("%s has %d fields, in the schema %d: run go generate ./decision", m.Name(), m.Fields().Len(), n)
		}
	}
	if n := bytes.Count(src, []byte("\nmessage ")); n != file.Messages().Len() {
		t.Errorf("%d messages, in the schema %d", file.Messages().Len(), n)
	}
}

const secret = "0123456789abcdef0123456789abcdef"

func TestToken(t *testing.T) {
	w := newWorld(t, func(c *Config) { c.Token = func() string { return secret } })
	const body = `{"target":"a","priority":5}`
	for name, tc := range map[string]struct {
		header []string
		ok     bool
	}{
		"right": {[]string{"Authorization", "Bearer " + secret}, true},
		"wrong": {[]string{"Authorization", "Bearer " + secret[1:]}, false},
		"none":  {nil, false},
		"basic": {[]string{"Authorization", "Basic " + secret}, false},
		// A token is not something a browser brings along; a certificate would be.
		"right of a foreign page":   {[]string{"Authorization", "Bearer " + secret, "Sec-Fetch-Site", "cross-site"}, false},
		"right under any host name": {[]string{"Authorization", "Bearer " + secret, "Host", "decisions.internal:9096"}, true},
	} {
		status, out := w.post("Admit", body, tc.header...)
		if (status == 200) != tc.ok {
			t.Errorf("%s: %d %v", name, status, out)
		}
		if !tc.ok && strings.Contains(out["message"].(string), secret) {
			t.Errorf("%s: %v", name, out)
		}
	}
	if status, out := w.post("Admit", body); status != 401 || out["code"] != "unauthenticated" {
		t.Errorf("%d %v", status, out)
	}
	_, err := pb.NewDecisionServiceClient(h2c(t), w.url, connect.WithGRPC()).List(background, &pb.ListRequest{})
	if connect.CodeOf(err) != connect.CodeUnauthenticated {
		t.Errorf("gRPC without a token: %v", err)
	}
	for path, want := range map[string]int{"/": 401, "/openapi.json": 401, "/healthz": 200} {
		resp, err := w.client.Get(w.url + path)
		if err != nil || resp.StatusCode != want {
			t.Errorf("%s: %v %v", path, resp, err)
		}
		resp.Body.Close()
	}
}

// DNS rebinding, and pages that post where they may not read.
func TestNoWebPageMayUseAnOpenPort(t *testing.T) {
	w := newWorld(t)
	for name, header := range map[string][]string{
		"a name that points here": {"Host", "evil.example:9096"},
		"a foreign page":          {"Sec-Fetch-Site", "cross-site"},
		"of an older browser":     {"Origin", "https://evil.example"},
	} {
		if status, out := w.post("Admit", `{"target":"a","priority":5}`, header...); status != 403 || out["code"] != "permission_denied" {
			t.Errorf("%s: %d %v", name, status, out)
		}
	}
	for _, host := range []string{"localhost:9096", "127.0.0.1", "[::1]:9096"} {
		if status, out := w.post("Admit", `{"target":"a","priority":5}`, "Host", host); status != 200 {
			t.Errorf("%s: %d %v", host, status, out)
		}
	}
	if n := w.registry.Len(); n != 1 {
		t.Errorf("%d targets", n)
	}
	// What a form can post is no JSON.
	for _, kind := range []string{"text/plain", "application/x-www-form-urlencoded", ""} {
		if status, said := w.postAs(kind, `{"target":"b","priority":5}`); status != 415 {
			t.Errorf("%q: %d %s", kind, status, said)
		}
	}
	if n := w.registry.Len(); n != 1 {
		t.Errorf("%d targets", n)
	}
}

// Who forgets the Content-Type, as curl -d does, was answered 415 without a word.
func TestForgottenContentTypeIsSaid(t *testing.T) {
	w := newWorld(t)
	for _, kind := range []string{"application/x-www-form-urlencoded", "text/plain", "application/xml", "application/connect+json", ""} {
		if status, said := w.postAs(kind, `{"target":"b","priority":5}`); status != 415 || !strings.Contains(said, "Content-Type: application/json") {
			t.Errorf("%q: %d %s", kind, status, said)
		}
	}
	for _, kind := range []string{"application/json", "application/json; charset=utf-8", "Application/JSON;charset=UTF-8"} {
		if status, said := w.postAs(kind, `{"target":"b","priority":5}`); status != 200 {
			t.Errorf("%q: %d %s", kind, status, said)
		}
	}
}

// postAs asks to admit.
func (w *world) postAs(kind, body string) (status int, said string) {
	w.t.Helper()
	r, _ := http.NewRequest("POST", w.url+"/cortex.v1.DecisionService/Admit", strings.NewReader(body))
	if kind != "" {
		r.Header.Set("Content-Type", kind)
	}
	resp, err := w.client.Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

// A client that sends half a request is not waited for; a watch, whose request is over, is.
func TestSlowRequestsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := New(Config{Others: cortex.NewRegistry(func(string) cortex.Config { return cortex.Config{} }, 10), Heartbeat: time.Minute})
		l := &pipes{conns: make(chan net.Conn), closed: make(chan struct{})}
		s := NewServer(h, nil)
		done := make(chan struct{})
		go func() { defer close(done); s.Serve(l) }()
		half := l.dial()
		began := time.Now()
		io.WriteString(half, "POST /cortex.v1.DecisionService/Admit HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
		resp, err := http.ReadResponse(bufio.NewReader(half), nil)
		if err == nil && resp.StatusCode < 400 {
			t.Errorf("half a request is answered with %d", resp.StatusCode)
		}
		if took := time.Since(began); took > 11*time.Second || took < 9*time.Second {
			t.Errorf("half a request was given %v", took)
		}
		half.Close()

		watch := l.dial()
		defer watch.Close()
		io.WriteString(watch, "POST /cortex.v1.DecisionService/Watch HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/connect+json\r\nContent-Length: 7\r\n\r\n\x00\x00\x00\x00\x02{}")
		r := bufio.NewReader(watch)
		if resp, err = http.ReadResponse(r, nil); err != nil || resp.StatusCode != 200 {
			t.Fatalf("%v %v", resp, err)
		}
		b := make([]byte, 5)
		for i := range 3 {
			if _, err := io.ReadFull(resp.Body, b); err != nil {
				t.Fatalf("message %d after %v: %v", i, time.Since(began), err)
			}
			io.CopyN(io.Discard, resp.Body, int64(b[4]))
		}
		watch.Close()
		s.Close()
		<-done
	})
}

// pipes is a network in memory, whose deadlines are in virtual time.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func (p *pipes) dial() net.Conn {
	here, there := net.Pipe()
	p.conns <- there
	return here
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error {
	close(p.closed)
	return nil
}

func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1)} }
