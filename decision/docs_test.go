package decision

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"

	pb "github.com/seed-a29ca62a/cortex/decision/decisionpb"
)

// Every method and every field is explained.
func TestTheDocsTellOfEveryField(t *testing.T) {
	text, err := os.ReadFile("../docs/decisions.md")
	if err != nil {
		t.Fatal(err)
	}
	doc := string(text)
	file := pb.File_cortex_v1_decision_proto
	for i := range Methods {
		if !strings.Contains(doc, Methods[i]) {
			t.Errorf("%s is not there", Methods[i])
		}
	}
	for i := range file.Messages().Len() {
		m := file.Messages().Get(i)
		if m.Name() == "FieldViolation" {
			continue
		}
		for j := range m.Fields().Len() {
			name := string(m.Fields().Get(j).Name())
			if !strings.Contains(doc, "`"+name+"`") && !strings.Contains(doc, "`"+name+":") {
				t.Errorf("%s.%s is not there", m.Name(), name)
			}
		}
	}
	for _, code := range Results[2:] {
		if code != "canceled" && code != "internal" && code != "other" && !strings.Contains(doc, "`"+code+"`") {
			t.Errorf("the code %s is not there", code)
		}
	}
}

var pythonBlock = regexp.MustCompile("(?s)```python\n(.*?)```")

// The Python of the documents runs as it stands there, with the service and without.
func TestThePythonOfTheDocsRuns(t *testing.T) {
	python, err := exec.LookPath("python3")
	if err != nil {
		if os.Getenv("CORTEX_REQUIRE_SERVICES") == "1" {
			t.Fatal("python3 is not installed")
		}
		t.Skip("python3 is not installed")
	}
	w := newWorld(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone := "http://" + l.Addr().String()
	l.Close()
	broken := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { // as a balancer without anything behind it
		w.WriteHeader(http.StatusBadGateway)
	}))
	defer broken.Close()
	ran := 0
	for _, name := range []string{"../docs/decisions.md", "../README.md"} {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range pythonBlock.FindAllStringSubmatch(string(text), -1) {
			if !strings.Contains(m[1], "DecisionService") {
				continue
			}
			ran++
			for _, url := range []string{w.url, gone} {
				code, lines := m[1], 1
				if url == gone { // what is no use is not tried again then, either
					code += fmt.Sprintf("\nSERVICE = SERVICE.replace(%q, %q)\nprint(again('whatsapp', 5, 0, 503, 12.5))\n"+
						"assert again('whatsapp', 5, 0, 404, 12.5) is None and again('whatsapp', 5, 3, 503, 12.5) is None\n", gone, broken.URL)
					lines = 2
				}
				cmd := exec.CommandContext(t.Context(), python, "-c", code)
				cmd.Env = append(os.Environ(), "CORTEX_URL="+url)
				out, err := cmd.CombinedOutput()
				waits := strings.Fields(string(out))
				for _, text := range waits {
					if wait, notNumber := strconv.ParseFloat(text, 64); notNumber != nil || wait < 0 || wait > 5 {
						err = fmt.Errorf("%q", text)
					}
				}
				if err != nil || len(waits) != lines {
					t.Errorf("%s: %v\n%s", name, err, out)
				}
			}
		}
	}
	if n := w.engine("whatsapp").Stats().Failures; ran == 0 || n != uint64(ran) {
		t.Errorf("%d snippets, %d failures recorded", ran, n)
	}
}
