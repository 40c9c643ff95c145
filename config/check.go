package config

import (
	"errors"
	"fmt"
	"mime"
	"net"
	"net/netip"
	"net/textproto"
	"path"
	"reflect"
	"regexp"
	"strconv"
	"strings"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/backoff"
	"github.com/seed-a29ca62a/cortex/breaker"
	"github.com/seed-a29ca62a/cortex/budget"
	"github.com/seed-a29ca62a/cortex/strictyaml"
	"github.com/seed-a29ca62a/cortex/timeout"
	"go.yaml.in/yaml/v3"
)

// parse fills a File and checks what only the whole can tell.
func (d *decoder) parse(root *yaml.Node) *File {
	f := newFile()
	if root == nil {
		return f
	}
	f.block().read(d, root, d.At(""))
	if len(f.Targets) == 0 && f.Decisions == nil && !d.Refused["targets"] && !d.Refused[""] {
		what := "missing"
		if d.Given("targets") {
			what = "empty"
		}
		d.Problem(d.At("targets"), "%s: want at least one target with endpoints", what)
	}
	listen := f.Listen
	if d.Refused["listen"] {
		listen = "" // what stands there is not what was meant
	}
	for i := range f.Targets {
		d.target(&f.Targets[i], listen)
	}
	d.routes(f)
	doubtful := d.Refused["listen"] || d.Refused["admin.listen"] || d.Refused["admin.enabled"]
	if f.Admin.Enabled {
		d.guarded("admin", f.Admin.Listen, f.Admin.TokenFile, f.Admin.TLS, "127.0.0.1:9095")
	}
	d.serverTLS(f.TLS, "tls")
	d.serverTLS(f.Admin.TLS, "admin.tls")
	if !doubtful && f.Admin.Enabled && len(f.Targets) > 0 && clash(f.Listen, f.Admin.Listen) {
		d.Problem(d.At("admin.listen"), "%s: the same port as listen, %s: want another", f.Admin.Listen, f.Listen)
	}
	d.decisions(f)
	d.cluster(f.Cluster)
	return f
}

// missing reports a key that must be there, unless the block around it was refused as a whole.
func (d *decoder) missing(block, key, want string) {
	if key = block + "." + key; !d.Given(key) && !d.Refused[block] {
		d.Problem(d.At(key), "missing: want %s", want)
	}
}

func (d *decoder) target(t *Target, listen string) {
	key := "targets." + show(t.Name)
	d.endpoints(t, key, listen)
	d.balance(&t.Balance, key+".balance")
	d.transportTLS(t, key)
	d.engine(&t.Engine, t.Name, t.block(), key)
}

// engine fills in the defaults of an engine, whose keys are those of b below key, and reports what the engine itself refuses, which with every value in its own range is
// how values go together.
func (d *decoder) engine(c *cortex.Config, name string, b block, key string) {
	keys := fieldKeys(b, "")
	c.Name = name
	doubtful := d.doubtful(key+".", keys)
	unknown := d.Refused[key+".profile"] // then so are the defaults
	cleared := make(map[string]bool)
	for {
		full, err := c.WithDefaults()
		if err == nil {
			// Functions are no configuration; the engine fills them in again.
			full.Classify, full.Now, full.Rand = nil, nil, nil
			*c = full
			return
		}
		for _, fault := range faults(err) {
			part, _, _ := strings.Cut(fault.field, ".")
			if !doubtful[part] && !unknown && !cleared[fault.field] {
				d.Problem(d.At(strings.TrimSuffix(key+"."+keys[fault.field], ".")), "%s", inKeys(fault, keys))
			}
			// Its default lets the check go on to the next; where that does not go with the rest, neither may the rest stay.
			if !cleared[fault.field] {
				cleared[fault.field] = true
				clearField(c, fault.field)
			} else if !cleared[part] {
				cleared[part] = true
				clearField(c, part)
			} else {
				return
			}
		}
	}
}

// doubtful tells the parts of cortex.Config that are not what was meant, because a key of theirs, or one that may be a misspelt
// one of theirs, was refused by itself: how its default goes together with the rest is of no interest.
func (d *decoder) doubtful(prefix string, keys map[string]string) map[string]bool {
	partOf := make(map[string]string, len(keys)) // of a key
	partsIn := make(map[string][]string)         // of a block
	for field, key := range keys {
		part, _, _ := strings.Cut(field, ".")
		partOf[key] = part
		block := key[:strings.LastIndexByte(key, '.')+1]
		partsIn[block] = append(partsIn[block], part)
	}
	parts := make(map[string]bool)
	for _, p := range d.Problems {
		key, ok := strings.CutPrefix(p.Key, prefix)
		if !ok {
			continue
		}
		if part, ok := partOf[key]; ok {
			parts[part] = true
			continue
		}
		if block := key[:strings.LastIndexByte(key, '.')+1]; block != "" {
			for _, part := range partsIn[block] {
				parts[part] = true
			}
		}
	}
	return parts
}

// A fault is a field of cortex.Config that the engine refuses, by its path there.
type fault struct{ field, text string }

func faults(err error) []fault {
	var c *cortex.ConfigError
	if !errors.As(err, &c) {
		return []fault{{"", err.Error()}}
	}
	if c.Err == nil {
		return []fault{{c.Field, want(c.Value, c.Want)}}
	}
	all := []error{c.Err}
	if joined, ok := c.Err.(interface{ Unwrap() []error }); ok {
		all = joined.Unwrap()
	}
	found := make([]fault, len(all))
	for i, err := range all {
		field, text, _ := strings.Cut(err.Error(), ": ")
		switch e := err.(type) {
		case *backoff.ConfigError:
			field, text = e.Field, want(e.Value, e.Want)
		case *budget.ConfigError:
			field, text = e.Field, want(e.Value, e.Want)
		case *breaker.ConfigError:
			field, text = e.Field, want(e.Value, e.Want)
		case *timeout.ConfigError:
			field, text = e.Field, e.Problem
		}
		found[i] = fault{c.Field + "." + field, text}
	}
	return found
}

func want(v any, want string) string {
	if v != nil && reflect.TypeOf(v).Kind() == reflect.Struct {
		return "want " + want
	}
	return fmt.Sprintf("%v: want %s", v, want)
}

var (
	goName     = regexp.MustCompile(`\b[A-Z][A-Za-z]+\b`)
	zeroIs     = regexp.MustCompile(`, or 0 for [^;]*$`)
	zeroPieces = regexp.MustCompile(`(\d[hm])0m?0?s\b`) // 1m0s, 1h0m0s
)

// inKeys says what is wrong in the words of the file: keys for fields, and no 0 that stands for the default.
func inKeys(f fault, keys map[string]string) string {
	part, _, _ := strings.Cut(f.field, ".")
	text := zeroIs.ReplaceAllString(f.text, "")
	text = zeroPieces.ReplaceAllString(text, "$1")
	return goName.ReplaceAllStringFunc(text, func(name string) string {
		if key, ok := keys[part+"."+name]; ok {
			return key[strings.LastIndexByte(key, '.')+1:]
		}
		return name
	})
}

// fieldKeys maps the fields of cortex.Config to the keys, below the target, that fill them.
func fieldKeys(b block, prefix string) map[string]string {
	keys := make(map[string]string)
	for _, e := range b {
		if e.field != "" {
			keys[e.field] = prefix + e.key
		}
		var inner block
		switch v := e.value.(type) {
		case block:
			inner = v
		case weights:
			inner = v.block()
		}
		for field, key := range fieldKeys(inner, prefix+e.key+".") {
			keys[field] = key
		}
	}
	return keys
}

// clearField sets a field to its zero value, its default, so that the check gets to the next; false if there is none of that
// name. Weights go together.
func clearField(c *cortex.Config, field string) bool {
	v := reflect.ValueOf(c).Elem()
	for name := range strings.SplitSeq(field, ".") {
		inner := v.FieldByName(name)
		if !inner.IsValid() {
			return false
		}
		if v = inner; name == "Weights" {
			break
		}
	}
	v.SetZero()
	return true
}

func (d *decoder) routes(f *File) {
	if len(f.Routes) == 0 && !d.Given("routes") {
		switch len(f.Targets) {
		case 0: // has been reported
		case 1:
			f.Routes = []Route{{Path: "/", Target: f.Targets[0].Name,
				Priority: Priority{Default: f.Targets[0].Engine.Levels / 2, Trust: loopback()}}}
		default:
			d.Problem(d.At("routes"), "missing: there are %d targets: want a path for each, such as {path: /, target: %s}",
				len(f.Targets), show(f.Targets[0].Name))
		}
		return
	}
	type taken struct{ path, method string }
	first := make(map[taken]int)
	byName := make(map[string]*Target, len(f.Targets))
	for i := range f.Targets {
		byName[f.Targets[i].Name] = &f.Targets[i]
	}
	for i := range f.Routes {
		r, key := &f.Routes[i], fmt.Sprintf("routes[%d]", i)
		d.missing(key, "path", "a path prefix such as / or /api")
		methods := r.Methods
		if len(methods) == 0 {
			methods = []string{""}
		}
		for j, m := range methods {
			if m == "" && len(r.Methods) > 0 || r.Path == "" {
				continue // was refused
			}
			if k, ok := first[taken{r.Path, m}]; !ok {
				first[taken{r.Path, m}] = i
			} else if k == i {
				d.Problem(d.At(fmt.Sprintf("%s.methods[%d]", key, j)), "%s: given twice", m)
			} else {
				what := r.Path
				if m != "" {
					what = m + " " + what
				}
				d.Problem(d.At(key+".path"), "%s: given twice: first as routes[%d] on line %d", what, k, d.At(fmt.Sprintf("routes[%d].path", k)).Line)
				break
			}
		}
		d.route(f, r, key, byName)
	}
}

func (d *decoder) route(f *File, r *Route, key string, byName map[string]*Target) {
	levels, whose := 0, ""
	if !d.Given(key+".target") && len(f.Targets) == 1 {
		r.Target = f.Targets[0].Name
	}
	switch t := byName[r.Target]; {
	case t != nil:
		if whose = t.Name; !d.Refused["targets."+show(whose)+".levels"] {
			levels = t.Engine.Levels
		}
	case len(f.Targets) == 0: // has been reported
	case !d.Given(key + ".target"):
		d.missing(key, "target", "the name of a target: "+strictyaml.OneOf(f.targetNames()))
	case !d.Refused[key+".target"]:
		d.Problem(d.At(key+".target"), "%s: no such target: %s", show(r.Target), suggestTarget(r.Target, f.targetNames()))
	}
	d.priority(&r.Priority, key+".priority", levels, whose)
	if s := r.Fallback.Static; s != nil {
		static := key + ".fallback.static"
		d.missing(static, "status", "the status to answer with, such as 202 or 503")
		if (s.Status == 204 || s.Status == 205 || s.Status == 304) && s.Body != "" {
			d.Problem(d.At(static+".body"), "an answer %d has no body: want none, or another status", s.Status)
		}
	}
}

func suggestTarget(name string, names []string) string {
	s := "there are " + strictyaml.OneOf(names)
	if len(names) == 1 {
		s = "there is " + names[0]
	}
	if n := strictyaml.Nearest(name, names); n != "" && len(names) > 1 {
		return "did you mean " + n + "? " + s
	}
	return s
}

// priority checks a route's priorities against the levels of its target; 0 levels are not known.
func (d *decoder) priority(p *Priority, key string, levels int, whose string) {
	if !d.Given(key + ".default") {
		p.Default = levels / 2
	}
	inLevels := func(key string, priority int) {
		if levels > 0 && priority > levels {
			d.Problem(d.At(key), "%d: out of range: want from 0 to %d, the levels of target %s", priority, levels, show(whose))
		}
	}
	inLevels(key+".default", p.Default)
	for name, priority := range p.Tiers {
		inLevels(key+".tiers."+name, priority)
	}
	if !d.Given(key + ".trust") {
		p.Trust = loopback()
	}
	if d.Given(key+".tiers") && !d.Given(key+".header") {
		d.Problem(d.At(key+".tiers"), "without header: want the name of the header that holds the tier, such as header: X-Priority")
	}
}

var (
	targetName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_.-]{0,62}$`)
	tierName   = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_.-]{0,62}$`)
	hostName   = regexp.MustCompile(`^[A-Za-z0-9_]([A-Za-z0-9_.-]{0,251}[A-Za-z0-9_.])?$`)
	portNumber = regexp.MustCompile(`^(0|[1-9]\d{0,4})$`)
	token      = regexp.MustCompile("^[A-Za-z0-9!#$%&'*+.^_`|~-]{1,128}$")
	methodName = regexp.MustCompile(`^[A-Z][A-Z-]{0,30}$`)
)

func parseName(s string) (string, string) {
	if !token.MatchString(s) || len(s) > 63 {
		return "", "not a name: want up to 63 letters, digits and !#$%&'*+-.^_`|~, without spaces"
	}
	return s, ""
}

func address(p *string) value {
	return text[string]{p: p, want: "an address such as 127.0.0.1:8080", parse: parseAddress, show: itself}
}

func parseAddress(s string) (string, string) {
	const want = "want host:port, such as 127.0.0.1:8080, or :8080 for all interfaces"
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		return "", "not an address: " + want
	}
	if !isPort(port) {
		return "", "not a port from 0 to 65535: " + want
	}
	if host != "" && !isHost(host) {
		return "", "not a host: " + want
	}
	return s, ""
}

func isPort(s string) bool {
	n, err := strconv.Atoi(s)
	return portNumber.MatchString(s) && err == nil && n <= 65535
}

func isHost(s string) bool {
	ip, err := netip.ParseAddr(s)
	return err == nil && (ip.Zone() == "" || hostName.MatchString(ip.Zone())) || hostName.MatchString(s)
}

// clash reports whether two addresses cannot both be listened on, as far as that can be seen without a resolver.
func clash(a, b string) bool {
	hostA, portA, _ := net.SplitHostPort(a)
	hostB, portB, _ := net.SplitHostPort(b)
	if portA != portB || portA == "0" || portA == "" {
		return false
	}
	any := func(host string) bool {
		ip, err := netip.ParseAddr(host)
		return host == "" || err == nil && ip.IsUnspecified()
	}
	local := func(host string) string {
		if strings.EqualFold(host, "localhost") {
			return "127.0.0.1"
		}
		return strings.ToLower(host)
	}
	return any(hostA) || any(hostB) || local(hostA) == local(hostB)
}

func parsePath(s string) (string, string) {
	switch {
	case !strings.HasPrefix(s, "/"):
		return "", "not a path: want one that begins with /"
	case strings.ContainsAny(s, "*{}"):
		return "", "no wildcards: a path is a prefix, /api is /api and all below it"
	case strings.ContainsAny(s, "?#%"):
		return "", "want the path alone, without a query and without escapes"
	case strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r == 0x7f }):
		return "", "want a path without control characters"
	}
	p := s
	if len(p) > 1 {
		p = strings.TrimSuffix(p, "/")
	}
	if clean := path.Clean(p); clean != p {
		return "", "want it in its shortest form, " + show(clean)
	}
	return p, ""
}

func parseMethod(s string) (string, string) {
	if !methodName.MatchString(s) {
		return "", "not a method: want one in capitals, such as GET"
	}
	return s, ""
}

func parseHeader(s string) (string, string) {
	if !token.MatchString(s) {
		return "", "not the name of a header: want one such as X-Priority"
	}
	return textproto.CanonicalMIMEHeaderKey(s), ""
}

func parseNetwork(s string) (netip.Prefix, string) {
	if ip, err := netip.ParseAddr(s); err == nil && ip.Zone() == "" {
		return netip.Prefix{}, fmt.Sprintf("not a network: want %s for this one address", netip.PrefixFrom(ip, ip.BitLen()))
	}
	p, err := netip.ParsePrefix(s)
	switch {
	case err != nil:
		return netip.Prefix{}, "not a network: want one such as 10.0.0.0/8 or fd00::/8"
	case p.Addr().Is4In6():
		return netip.Prefix{}, "an IPv4 network in IPv6 clothes, which no client is in: want it as IPv4"
	case p != p.Masked():
		return netip.Prefix{}, fmt.Sprintf("bits beyond the prefix: want %s", p.Masked())
	}
	return p, ""
}

func parseContentType(s string) (string, string) {
	_, _, err := mime.ParseMediaType(s)
	if err != nil || !strings.Contains(s, "/") || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r >= 0x7f }) {
		return "", "not a media type: want one such as application/json"
	}
	return s, ""
}
