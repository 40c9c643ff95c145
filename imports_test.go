package cortex_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
)

const module = "github.com/seed-a29ca62a/cortex"

// The rooms of DESIGN 5, each with the rooms it may import. The direction is down: what is not listed is not allowed, and the
// standard library is.
var rooms = []struct {
	name string
	may  []string
}{
	{"window", nil},
	{"breaker", []string{"window"}},
	{"budget", []string{"window"}},
	{"backoff", []string{"window"}},
	{"limit", []string{"window"}},
	{"timeout", []string{"window"}},
	{"fallback", []string{"window"}},
	{"", []string{"window", "breaker", "budget", "backoff", "limit", "timeout", "fallback"}},
	{"cortexhttp", []string{"", "window", "breaker", "budget", "backoff", "limit", "timeout", "fallback"}},
}

// The leaves of the gateway: each knows one thing and nothing of the guard, so that its tests need neither and another program
// could use it. They work with sockets, files and the process, so that the rules of the library on clocks and goroutines are not
// for them.
var leaves = []string{"h1", "balance", "front", "tlsfile", "systemd", "watch", "quota", "accesslog", "door"}

// sources parses the non-test files of a room, whatever their build constraints.
func sources(t *testing.T, room string) map[string]*ast.File {
	t.Helper()
	names, err := filepath.Glob(filepath.Join(".", room, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]*ast.File{}
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files[filepath.ToSlash(name)] = f
	}
	if len(files) == 0 {
		t.Fatalf("room %q has no files: is the test run in the module's root?", room)
	}
	return files
}

// imported maps the name by which a file knows a package to its path.
func imported(t *testing.T, name string, f *ast.File) map[string]string {
	t.Helper()
	by := map[string]string{}
	for _, i := range f.Imports {
		p, err := strconv.Unquote(i.Path.Value)
		if err != nil {
			t.Fatal(err)
		}
		known := path.Base(p)
		if strings.HasPrefix(known, "v") && strings.Trim(known[1:], "0123456789") == "" {
			known = path.Base(path.Dir(p))
		}
		if i.Name != nil {
			known = i.Name.Name
		}
		if known == "." || known == "_" && p != "embed" {
			t.Errorf("%s imports %s as %q", name, p, known)
		}
		by[known] = p
	}
	return by
}

func TestLibraryImportsOnlyTheStandardLibraryAndDownward(t *testing.T) {
	for _, room := range rooms {
		importsOnly(t, room.name, room.may)
	}
	for _, name := range leaves {
		importsOnly(t, name, nil)
	}
	// Vendoring or a workspace would make the rule above a matter of names only.
	for _, name := range []string{"vendor", "go.work"} {
		if _, err := os.Stat(name); err == nil {
			t.Errorf("there is a %s in the root", name)
		}
	}
}

// importsOnly reports what a room imports beside the standard library and the rooms that it may.
func importsOnly(t *testing.T, room string, may []string) {
	t.Helper()
	allowed := map[string]bool{}
	for _, m := range may {
		allowed[strings.TrimSuffix(module+"/"+m, "/")] = true
	}
	for name, f := range sources(t, room) {
		for _, p := range imported(t, name, f) {
			switch {
			case p == "unsafe" && name == "systemd/monotonic_linux.go": // to read the clock that systemd goes by
			case p == "C" || p == "unsafe" || p == "testing" || strings.HasPrefix(p, "testing/"):
				t.Errorf("%s imports %s", name, p)
			case p == module || strings.HasPrefix(p, module+"/"):
				if !allowed[p] {
					t.Errorf("%s imports %s: the rooms below %q are %q", name, p, room, may)
				}
			case strings.Contains(strings.Split(p, "/")[0], "."):
				t.Errorf("%s imports %s, which is not the standard library's", name, p)
			}
		}
	}
}

// The clock and the random source come in from outside: the lab runs the very same code in virtual time.
func TestLibraryReadsNoClockAndNoGlobalRandom(t *testing.T) {
	clock := map[string]bool{"Now": true, "Since": true, "Until": true, "Sleep": true, "After": true, "Tick": true,
		"NewTicker": true}
	source := map[string]bool{"New": true, "NewPCG": true, "NewChaCha8": true, "Rand": true, "Source": true, "PCG": true, "ChaCha8": true}
	// The defaults, each the one reading there is.
	want := map[string]int{
		"clock.go time.Now": 1, "clock.go time.Since": 1, "clock.go time.Until": 1, "clock.go rand.Uint64": 1,
		"fallback/cache.go time.Now": 1, "fallback/cache.go time.Since": 1,
	}
	got := map[string]int{}
	for _, room := range rooms {
		for name, f := range sources(t, room.name) {
			by := imported(t, name, f)
			for _, p := range by {
				if p == "math/rand" || p == "crypto/rand" || p == "hash/maphash" && room.name != "" {
					t.Errorf("%s imports %s", name, p)
				}
			}
			called := map[ast.Expr]bool{}
			ast.Inspect(f, func(n ast.Node) bool {
				switch n := n.(type) {
				case *ast.GoStmt:
					t.Errorf("%s starts a goroutine", name)
				case *ast.CallExpr:
					called[n.Fun] = true
				case *ast.SelectorExpr:
					x, ok := n.X.(*ast.Ident)
					if !ok {
						break
					}
					use := fmt.Sprintf("%s %s.%s", name, x.Name, n.Sel.Name)
					switch p := by[x.Name]; {
					case p == "time" && clock[n.Sel.Name]:
						// cortexhttp needs the wall clock for the dates of Retry-After and the deadlines of contexts. It has one file
						// for that; elsewhere time.Now may be handed on as a default and not be called.
						if room.name == "cortexhttp" && (strings.HasSuffix(name, "clock.go") || n.Sel.Name == "Now" && !called[n]) {
							break
						}
						got[use]++
					case p == "math/rand/v2" && !source[n.Sel.Name]:
						got[use]++
					}
				}
				return true
			})
		}
	}
	for use, n := range got {
		if n > want[use] {
			t.Errorf("%s: %d times, %d allowed", use, n, want[use])
		}
	}
	for use, n := range want {
		if got[use] < n {
			t.Errorf("%s is not there any more: take it off the list", use)
		}
	}
}

// Two engines share nothing: what a package keeps in variables is never assigned after start-up.
func TestLibraryKeepsNoGlobalState(t *testing.T) {
	all := slices.Clone(leaves)
	for _, room := range rooms {
		all = append(all, room.name)
	}
	for _, room := range all {
		for name, f := range sources(t, room) {
			vars := map[string]bool{}
			for _, d := range f.Decls {
				if g, ok := d.(*ast.GenDecl); ok && g.Tok == token.VAR {
					for _, s := range g.Specs {
						for _, id := range s.(*ast.ValueSpec).Names {
							vars[id.Name] = true
						}
					}
				}
				if fn, ok := d.(*ast.FuncDecl); ok && fn.Recv == nil && fn.Name.Name == "init" {
					t.Errorf("%s has an init function", name)
				}
			}
			// Only writes to the file's own package-level names: a local of the same name would be reported too, and should
			// have another one.
			ast.Inspect(f, func(n ast.Node) bool {
				var written []ast.Expr
				switch n := n.(type) {
				case *ast.AssignStmt:
					if n.Tok != token.DEFINE {
						written = n.Lhs
					}
				case *ast.IncDecStmt:
					written = []ast.Expr{n.X}
				}
				for _, w := range written {
					for {
						if i, ok := w.(*ast.IndexExpr); ok {
							w = i.X
							continue
						}
						break
					}
					if id, ok := w.(*ast.Ident); ok && vars[id.Name] {
						t.Errorf("%s writes the package variable %s", name, id.Name)
					}
				}
				return true
			})
		}
	}
}

// The rooms above the library, each below those that may import it: a room imports only what stands before it. What is not in the
// list (cmd, bench, proof, the laboratory) is above all of it, and imported by nothing in it.
func TestGatewayImportsDownward(t *testing.T) {
	order := []string{"strictyaml", "explain", "cortexgrpc", "cluster", "decision/decisionpb", "decision", "config", "admin", "gateway", "demo"}
	below := map[string]bool{}
	for _, r := range rooms {
		below[strings.TrimSuffix(module+"/"+r.name, "/")] = true
	}
	for _, name := range leaves {
		below[module+"/"+name] = true
	}
	for _, room := range order {
		for name, f := range sources(t, room) {
			for _, p := range imported(t, name, f) {
				if (p == module || strings.HasPrefix(p, module+"/")) && !below[p] {
					t.Errorf("%s imports %s, which is not below %q", name, p, room)
				}
			}
		}
		below[module+"/"+room] = true
	}
}

// Each dependency is one more that can be attacked: it is listed with its reason, or it is not there.
func TestDependenciesHaveAReason(t *testing.T) {
	mod, err := os.ReadFile("go.mod")
	if err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile("SECURITY.md")
	if err != nil {
		t.Fatal(err)
	}
	inBlock := false
	for line := range strings.Lines(string(mod)) {
		f := strings.Fields(line)
		switch {
		case len(f) == 2 && f[0] == "require" && f[1] == "(":
			inBlock = true
			continue
		case len(f) > 0 && f[0] == ")":
			inBlock = false
		case len(f) > 2 && f[0] == "require":
			f = f[1:]
		case !inBlock:
			continue
		}
		if len(f) < 2 || strings.HasSuffix(strings.TrimSpace(line), "// indirect") {
			continue
		}
		if !strings.Contains(string(doc), "`"+f[0]+"`") {
			t.Errorf("go.mod requires %s, which SECURITY.md does not name with its reason (## Dependencies)", f[0])
		}
	}
}
