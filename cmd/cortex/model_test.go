package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"flag"
	"image/png"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

var update = flag.Bool("update", false, "write the output of the commands in docs/models.md into it")

func models(t *testing.T) []*cobra.Command {
	t.Helper()
	cmds := newModel().Commands()
	if len(cmds) < 8 {
		t.Fatalf("%d models", len(cmds))
	}
	return cmds
}

// quick leaves out the simulator runs of the one model that has some.
func quick(name string) []string {
	args := []string{"model", name}
	if name == "cascade" {
		args = append(args, "--runs", "0")
	}
	return args
}

func TestModelsAsJSONAndPictures(t *testing.T) {
	for _, c := range models(t) {
		picture := filepath.Join(t.TempDir(), "a.svg")
		code, out, stderr := cli(t, append(quick(c.Name()), "--format", "json", "--plot", picture)...)
		if code != 0 {
			t.Errorf("%s: exit %d: %s", c.Name(), code, stderr)
			continue
		}
		var r struct {
			Model, Claim, Verdict, Because string
			Inputs                         []struct{ Name string }
		}
		if err := json.Unmarshal([]byte(out), &r); err != nil || r.Model != c.Name() || r.Claim == "" || r.Because == "" {
			t.Errorf("%s: %v: %+v", c.Name(), err, r)
		}
		for _, in := range r.Inputs {
			if c.Flags().Lookup(in.Name) == nil {
				t.Errorf("%s reports an input %s, which is no flag", c.Name(), in.Name)
			}
		}
		svg, err := os.ReadFile(picture)
		if err != nil {
			t.Errorf("%s: %v", c.Name(), err)
		}
		for dec := xml.NewDecoder(bytes.NewReader(svg)); ; {
			if _, err := dec.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatalf("%s: %v", c.Name(), err)
			}
		}
	}
}

func TestModelDrawsAPNG(t *testing.T) {
	picture := filepath.Join(t.TempDir(), "a.png")
	if code, _, stderr := cli(t, "model", "amplification", "--plot", picture); code != 0 {
		t.Fatal(stderr)
	}
	b, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := png.Decode(bytes.NewReader(b)); err != nil {
		t.Error(err)
	}
	code, out, stderr := cli(t, "model", "amplification", "--plot", filepath.Join(t.TempDir(), "none", "a.png"))
	if code != 1 || out != "" || !strings.Contains(stderr, "--plot") {
		t.Errorf("exit %d, %q, %q", code, out, stderr)
	}
}

// Each flag of each model, set to what it cannot be, is named, with what it can be.
func TestModelNamesTheFlagThatIsWrong(t *testing.T) {
	for _, c := range models(t) {
		if c.Example == "" || c.Short == "" {
			t.Errorf("cortex model %s has no example or no description", c.Name())
		}
		c.Flags().VisitAll(func(f *pflag.Flag) {
			for _, wrong := range []string{"-1", "NaN", "1e400"} {
				code, out, stderr := cli(t, "model", c.Name(), "--"+f.Name+"="+wrong)
				if code != 2 || out != "" || !strings.Contains(stderr, "--"+f.Name) {
					t.Errorf("cortex model %s --%s=%s: exit %d, %q", c.Name(), f.Name, wrong, code, stderr)
				}
			}
		})
	}
	for _, x := range []struct {
		args []string
		says string
	}{
		{[]string{"nonsense"}, "nonsense"},
		{[]string{"amplification", "surplus"}, "surplus"},
		{[]string{"amplification", "--failure-rate", "1.5"}, "--failure-rate 1.5: want a number from 0 to 1"},
		{[]string{"jitter", "--bin", "1ns"}, "--bin 1ns: want a duration from 600µs to 24h0m0s"},
		{[]string{"timeout", "--target", "0.9"}, "above the quantile of 0.999"},
		{[]string{"threshold", "--mix", "part=1"}, "full, uniform and partial"},
		{[]string{"littles-law", "--fast", "10s"}, "up to that of a slow call"},
		{[]string{"floor", "--keep", "3"}, "one of the tiers 1,2,4"},
		{[]string{"backoff", "--max", "10ms"}, "--max 10ms: want a duration from 100ms to 1h0m0s"},
		{[]string{"backoff", "--attempt-cost", "0", "--second-cost", "0"}, "a cost above 0"},
		{[]string{"floor", "--plot", "a.pdf"}, ".svg or .png"},
		{[]string{"floor", "--format", "xml"}, "text or json"},
	} {
		code, out, stderr := cli(t, append([]string{"model"}, x.args...)...)
		if code != 2 || out != "" || !strings.Contains(stderr, x.says) {
			t.Errorf("cortex model %s: exit %d, %q, want %q", strings.Join(x.args, " "), code, stderr, x.says)
		}
	}
}

func TestModelByItselfSaysWhatThereIs(t *testing.T) {
	code, out, _ := cli(t, "model")
	if code != 0 || !strings.Contains(out, "amplification") || !strings.Contains(out, "littles-law") {
		t.Errorf("exit %d: %s", code, out)
	}
}

// What docs/models.md shows is what the commands print; -update writes it.
func TestModelsPageIsWhatTheCommandsPrint(t *testing.T) {
	const page = "../../docs/models.md"
	raw, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	const fence = "```\n"
	parts := strings.Split(string(raw), fence)
	shown := map[string]bool{}
	for i := 1; i < len(parts); i += 2 {
		command, got, _ := strings.Cut(parts[i], "\n")
		args, ok := strings.CutPrefix(command, "$ cortex model ")
		if !ok {
			t.Errorf("%q is not a command", command)
			continue
		}
		words := strings.Fields(args)
		shown[words[0]] = true
		code, want, stderr := cli(t, append([]string{"model"}, words...)...)
		if code != 0 {
			t.Errorf("%s: exit %d: %s", command, code, stderr)
		}
		if got != want && !*update {
			t.Errorf("%s prints\n%s\nthe page says\n%s\n(go test ./cmd/cortex -run ModelsPage -update)", command, want, got)
		}
		parts[i] = command + "\n" + want
	}
	for _, c := range models(t) {
		if !shown[c.Name()] {
			t.Errorf("%s does not show cortex model %s", page, c.Name())
		}
	}
	if *update && !t.Failed() {
		if err := os.WriteFile(page, []byte(strings.Join(parts, fence)), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

// Ctrl-C ended a model as if it had answered: "context canceled", exit 1.
func TestModelInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs bytes.Buffer
	if code := run(ctx, []string{"model", "cascade"}, &out, &errs); code != exitInterrupted || out.Len() > 0 || !strings.Contains(errs.String(), "interrupted") {
		t.Errorf("exit %d, %q, %q", code, out.String(), errs.String())
	}
}
