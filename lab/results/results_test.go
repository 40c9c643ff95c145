package main

import (
	"bytes"
	"context"
	"encoding/json"
	"encoding/xml"
	"errors"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/seed-a29ca62a/cortex/limit"
)

// A new ingredient of the law must come into the ablation table, with its own bit and a title.
func TestAblationHasEveryIngredient(t *testing.T) {
	names := constants(t, "../../limit/*.go", "Ingredients")
	if len(names) == 0 {
		t.Fatal("package limit has no ingredients")
	}
	var all limit.Ingredients
	for _, x := range ingredients {
		if !slices.Contains(names, x.name) || x.title == "" || all&x.off != 0 {
			t.Errorf("%s: not in package limit, or without a title, or with the bit of another", x.name)
		}
		all |= x.off
		names = slices.DeleteFunc(names, func(n string) bool { return n == x.name })
	}
	if len(names) > 0 {
		t.Errorf("not in the ablation table: %v", names)
	}
}

// constants are the names of a type's, in the files of a package.
func constants(t *testing.T, pattern, of string) []string {
	t.Helper()
	files, err := filepath.Glob(pattern)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, file := range files {
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			g, ok := d.(*ast.GenDecl)
			if !ok || g.Tok != token.CONST {
				continue
			}
			current := ""
			for _, s := range g.Specs {
				v := s.(*ast.ValueSpec)
				if id, ok := v.Type.(*ast.Ident); ok {
					current = id.Name
				} else if len(v.Values) > 0 {
					current = ""
				}
				if current == of {
					for _, n := range v.Names {
						names = append(names, n.Name)
					}
				}
			}
		}
	}
	return names
}

func TestEncodeRounds(t *testing.T) {
	got, err := encode(map[string]any{"a": []float64{1.0 / 3, 1e-12 / 3, 2000000, -0.5}, "b": "1.23456789 \" { [", "c": nil})
	if err != nil {
		t.Fatal(err)
	}
	want := "{\"a\":[\n0.333333,\n3.33333e-13,\n2000000,\n-0.5],\n\"b\":\"1.23456789 \\\" { [\",\n\"c\":null}\n"
	if string(got) != want {
		t.Errorf("%q, want %q", got, want)
	}
	if !json.Valid(got) {
		t.Error("no JSON")
	}
}

func TestLosses(t *testing.T) {
	rows := []figures{
		{Scenario: "S1", Policy: product, Goodput: 0.66, By: []float64{1}}, {Scenario: "S1", Policy: "none", Goodput: 0.6615, By: []float64{1}},
		{Scenario: "S5", Policy: product, Goodput: 0.66, By: []float64{1}}, {Scenario: "S5", Policy: "none", Goodput: 0.663, By: []float64{1}},
		{Scenario: "S5", Policy: "exponential", Goodput: 0.67, By: []float64{1}},
	}
	peers := []figures{{Scenario: "S1", Policy: product, Goodput: 0.65, By: []float64{1}}, {Scenario: "S1", Policy: "elsewhere", Goodput: 0.653, By: []float64{1}}}
	all := losses(rows, peers)
	if len(all) != 2 || all[0].scenario != "S1" || len(all[0].ahead) != 1 || all[0].ahead[0].name != "elsewhere" ||
		all[1].scenario != "S5" || len(all[1].ahead) != 2 || all[1].ahead[0].name != "exponential" {
		t.Fatalf("%+v", all)
	}
	defer func(r []reason, h []habit) { reasons, habits = r, h }(reasons, habits)
	reasons, habits = []reason{{"S5", "why"}}, []habit{{"elsewhere", "why"}}
	if err := explained(all, true); err != nil {
		t.Errorf("all have reasons: %v", err)
	}
	reasons, habits = []reason{{"S10", "why"}}, []habit{{"nobody", "why"}}
	err := explained(all, true)
	for _, want := range []string{"S1: ", "S5: ", "S10: nothing is ahead", "nobody: is not ahead"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: no %q", err, want)
		}
	}
}

func TestMultiplesAreSVG(t *testing.T) {
	d := mapData{Rho: []float64{0.1, 0.2, 0.3}, Outages: []float64{0.1, 1}}
	for range 5 {
		d.Maps = append(d.Maps, policyMap{"a < b", [][]float64{{0, 0.5, 1}, {1, 1, 0}}})
	}
	dec := xml.NewDecoder(bytes.NewReader(d.multiples()))
	for {
		if _, err := dec.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// The whole machine, small, writes a document that the check then finds right, and a changed one wrong.
func TestQuick(t *testing.T) {
	if testing.Short() || raced {
		t.Skip("takes a quarter of a minute")
	}
	dir := t.TempDir()
	var out bytes.Buffer
	if err := run(context.Background(), []string{"--quick", "--docs", dir}, &out, io.Discard); err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(dir, "results.md")
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"# Results", "## Goals", "## The suite", "## Losses", "go run ./cmd/cortex sim"} {
		if !bytes.Contains(text, []byte(want)) {
			t.Errorf("no %q", want)
		}
	}
	for _, p := range strings.Split(string(text), "(results/")[1:] {
		file, _, _ := strings.Cut(p, ")")
		if _, err := os.Stat(filepath.Join(dir, "results", file)); err != nil {
			t.Error(err)
		}
	}
	if err := run(context.Background(), []string{"--quick", "--docs", dir, "--check"}, &out, io.Discard); err != nil {
		t.Errorf("check of what was just written: %v", err)
	}
	if err := os.WriteFile(name, append(text, "more"...), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := checkDocument(&study{docs: dir, scale: small}); err == nil {
		t.Error("check of a changed document: no error")
	}
}

func TestFlags(t *testing.T) {
	for _, args := range [][]string{{"--only", "hope"}, {"now"}, {"--no"}} {
		if err := run(context.Background(), args, io.Discard, io.Discard); err == nil {
			t.Errorf("%v: no error", args)
		}
	}
}
