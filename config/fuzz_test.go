package config_test

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/seed-a29ca62a/cortex"
	"github.com/seed-a29ca62a/cortex/config"
)

// Whatever the bytes: no panic; either a file that prints as what parses to it and whose engines the core accepts, or problems
// that are sorted, in one line each, and inside the file.
func FuzzParse(f *testing.F) {
	f.Add([]byte(sample))
	f.Add([]byte(everything))
	f.Add([]byte(target))
	f.Fuzz(func(t *testing.T, data []byte) {
		file, err := config.Parse("f", data)
		if err != nil {
			var found config.Errors
			if !errors.As(err, &found) || len(found) == 0 || file != nil {
				t.Fatalf("%v with %v", err, file)
			}
			lines := strings.Count(string(data), "\n") + 1
			// YAML breaks lines at these too.
			lines += strings.Count(string(data), "\r") + strings.Count(string(data), "\u0085") +
				strings.Count(string(data), "\u2028") + strings.Count(string(data), "\u2029")
			last := config.Problem{}
			for _, p := range found {
				if p.Line < 1 || p.Line > lines || p.Line < last.Line || p.Line == last.Line && p.Column < last.Column {
					t.Fatalf("%v of %d lines, after %v", p, lines, last)
				}
				if p.Message == "" || strings.ContainsAny(p.String(), "\n\r\x00\x1b") {
					t.Fatalf("%q", p.String())
				}
				last = p
			}
			return
		}
		text, err := file.Effective()
		if err != nil {
			t.Fatal(err)
		}
		again, err := config.Parse("f", text)
		if err != nil {
			t.Fatalf("%v\nin\n%s\nof\n%s", err, text, data)
		}
		if !reflect.DeepEqual(file, again) {
			t.Fatalf("%+v\nprints as\n%s\nwhich is\n%+v", file, text, again)
		}
		for _, tg := range file.Targets {
			c, err := file.Engine(tg.Name)
			if err == nil {
				_, err = cortex.New(c)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
	})
}
