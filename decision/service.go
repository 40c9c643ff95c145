package decision

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"

	"github.com/seed-a29ca62a/cortex/cortexhttp"
	pb "github.com/seed-a29ca62a/cortex/decision/decisionpb"
	"github.com/seed-a29ca62a/cortex/door"
)

//go:generate sh -c "cd ../proto/generate && go run . -root .. -out ../.. -openapi ../../decision/openapi.json cortex/v1/decision.proto"

//go:embed openapi.json
var openAPI []byte

const (
	readTimeout  = 10 * time.Second // for a request
	writeTimeout = 10 * time.Second // for an answer, or each message of a stream
	// Below it compressing costs more than it saves.
	compressFrom = 4 << 10
)

// service is the handler.
type service struct {
	Config
	door     *door.Door
	kept     door.Ration // those that were not let in
	rpc      http.Handler
	methods  map[string]int // by path, their place in Methods
	calls    calls
	errors   *connect.ErrorWriter
	index    []byte
	tokens   tokens
	snapshot snapshot
	watches  atomic.Int64
}

func newService(c Config) *service {
	if c.MaxTokens <= 0 {
		c.MaxTokens = DefaultMaxTokens
	}
	if c.MaxWatches <= 0 {
		c.MaxWatches = DefaultMaxWatches
	}
	if c.Heartbeat <= 0 {
		c.Heartbeat = 10 * time.Second
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Now == nil {
		began := time.Now()
		c.Now = func() time.Duration { return time.Since(began) }
	}
	s := &service{Config: c, door: door.New("cortex decisions", "decisions.token_file", c.Token), methods: map[string]int{}, calls: make(calls, len(Methods)),
		tokens: tokens{max: c.MaxTokens, byID: map[tokenID]*attempt{}, gone: func(a *attempt) bool { return c.Others.Lookup(a.target) != a.engine }}}
	options := []connect.HandlerOption{connect.WithReadMaxBytes(maxBody), connect.WithCompressMinBytes(compressFrom), jsonCodecs(),
		connect.WithInterceptors(counting{}),
		connect.WithRecover(s.panicked)}
	_, s.rpc = pb.NewDecisionServiceHandler(s, options...)
	s.errors = connect.NewErrorWriter(options...)
	var paths []string
	for i, name := range Methods {
		path := "/" + pb.DecisionServiceName + "/" + name
		s.methods[path] = i
		paths = append(paths, "POST "+path)
	}
	s.index, _ = json.MarshalIndent(map[string]any{"service": pb.DecisionServiceName, "methods": paths, "openapi": "/openapi.json",
		"protocols": []string{"connect", "grpc", "grpc-web", "json"}}, "", "  ")
	s.index = append(s.index, '\n')
	return s
}

// ServeHTTP lets a request in or not, and serves it.
func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	reads := r.Method == http.MethodGet || r.Method == http.MethodHead
	if reads && r.URL.Path == "/healthz" {
		say(w, "text/plain; charset=utf-8", []byte("ok\n"))
		return
	}
	if f := s.door.Refuses(r, false); f != nil {
		s.keepOut(w, r, f)
		return
	}
	method, ok := s.methods[r.URL.Path]
	switch path := r.URL.Path; {
	case ok:
		s.calls.serve(method, s.rpc, w, r)
		explain(w, Methods[method] == "Watch")
	case path == "/" && reads:
		say(w, "application/json", s.index)
	case path == "/openapi.json" && reads:
		say(w, "application/json", openAPI)
	case path == "/" || path == "/openapi.json":
		w.Header().Set("Allow", "GET, HEAD")
		cortexhttp.WriteProblem(w, r, cortexhttp.Problem{Status: http.StatusMethodNotAllowed, Detail: "This path takes GET, HEAD."})
	case s.errors.IsSupported(r) && strings.HasPrefix(path, "/"+pb.DecisionServiceName+"/"):
		s.errors.Write(w, r, connect.NewError(connect.CodeUnimplemented, errors.New("there is no such method: GET / lists those there are")))
	default:
		cortexhttp.WriteProblem(w, r, cortexhttp.Problem{Status: http.StatusNotFound,
			Detail: "There is nothing at this path of the decision service: GET / lists what there is."})
	}
}

// explain says why a request was none of the protocols. Their own answer, which has been made, has no text: who forgot the Content-Type with
// curl would see nothing at all.
func explain(w http.ResponseWriter, stream bool) {
	switch h := w.Header(); {
	case h["Allow"] != nil:
		io.WriteString(w, "The methods of the decision service take POST.\n")
	case h["Accept-Post"] != nil && stream:
		io.WriteString(w, "A watch is a stream: send it with Content-Type: application/connect+json, and before the JSON five bytes, a flag and its length.\n")
	case h["Accept-Post"] != nil:
		io.WriteString(w, "Send it with Content-Type: application/json; GET / lists the other protocols.\n")
	}
}

// keepOut answers a request that is not let in, in the words of its protocol.
func (s *service) keepOut(w http.ResponseWriter, r *http.Request, f *door.Refusal) {
	if log, missed := s.kept.Refused(s.Now(), f.Cause); log {
		s.Log.LogAttrs(r.Context(), slog.LevelWarn, "decisions: refused", slog.String("remote", r.RemoteAddr), slog.String("path", show(r.URL.Path)),
			slog.String("cause", f.Cause), slog.Uint64("unlogged_before", missed))
	}
	if f.Challenge != "" {
		w.Header().Set("WWW-Authenticate", f.Challenge)
	}
	if r.ProtoMajor == 1 {
		w.Header().Set("Connection", "close") // whoever guesses is to connect anew each time
	}
	if _, ok := s.methods[r.URL.Path]; ok && s.errors.IsSupported(r) {
		code := connect.CodePermissionDenied
		if f.Status == http.StatusUnauthorized {
			code = connect.CodeUnauthenticated
		}
		s.errors.Write(w, r, connect.NewError(code, errors.New(f.Detail)))
		return
	}
	cortexhttp.WriteProblem(w, r, cortexhttp.Problem{Status: f.Status, Detail: f.Detail})
}

// panicked is what a client is told of a mistake of this program.
func (s *service) panicked(ctx context.Context, spec connect.Spec, _ http.Header, p any) error {
	s.Log.LogAttrs(ctx, slog.LevelError, "decisions: panicked", slog.String("procedure", spec.Procedure), slog.Any("panic", p))
	return connect.NewError(connect.CodeInternal, errors.New("the service failed; its log says more"))
}

func say(w http.ResponseWriter, kind string, body []byte) {
	h := w.Header()
	h.Set("Content-Type", kind)
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	w.Write(body)
}

// connection bounds how long a client may take, where it is not as the server has it. What its server cannot do is left.
type connection struct{ *http.ResponseController }

func connOf(ctx context.Context) connection {
	if u, ok := ctx.Value(underWayKey{}).(*underWay); ok {
		return connection{http.NewResponseController(u.w)}
	}
	return connection{}
}

// reads gives the client so long for the rest of its request; 0 = any time.
func (c connection) reads(d time.Duration) {
	if c.ResponseController != nil {
		c.SetReadDeadline(deadline(d))
	}
}

// writes gives the client so long to take what is written next.
func (c connection) writes(d time.Duration) {
	if c.ResponseController != nil {
		c.SetWriteDeadline(deadline(d))
	}
}

func deadline(d time.Duration) time.Time {
	if d == 0 {
		return time.Time{}
	}
	return time.Now().Add(d)
}
